// What every plugin that keeps a state in checkpoints must hold to, whatever its kind.
#include <gtest/gtest.h>

#include <random>

#include "tools/conform/contract.h"
#include "tools/conform/saved_state.h"
#include "tools/conform/subject.h"

namespace engine::conform {
namespace {

constexpr char kHeader[] = "engine/ext/saved_state.h";

TEST(SavedState, ComesBackAsItWas) {
  MUST("LoadState gets what SaveState gave; what is saved then is the same again.");
  const auto worked = Worked(3), fresh = Worked(0);
  SavedState &from = *SavedStateOf(*worked), &to = *SavedStateOf(*fresh);
  EXPECT_EQ(from.state_version(), to.state_version());
  const StateBytes bytes = Save(from);
  EXPECT_EQ(Save(from), bytes) << "saving changes the state";
  Must(to.LoadState(bytes));
  EXPECT_EQ(Save(to), bytes);
}

TEST(SavedState, RefusesOrTakesWhateverAFileHolds) {
  MUST("kBadData for bytes that no SaveState makes.");
  const StateBytes whole = Save(*SavedStateOf(*Worked(3)));
  for (const uint32_t seed : Seeds(100)) {
    std::mt19937 random(seed);
    StateBytes bytes = whole;
    if (seed % 2 == 0) bytes.resize(random() % (2 * whole.size() + 2));
    for (size_t n = seed % 4; n > 0 && !bytes.empty(); --n) {
      bytes[random() % bytes.size()] = static_cast<uint8_t>(random());
    }
    bytes.shrink_to_fit();
    const Status status = SavedStateOf(*Worked(0))->LoadState(bytes);
    EXPECT_TRUE(status.ok() || status.code() == StatusCode::kBadData) << status.message();
  }
}

}  // namespace
}  // namespace engine::conform
