// Files with made-up content for those datasets of this repository that read some. What judges them
// comes after it.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/temp_folder.h"
#include "tests/unit/data/cifar10_bytes.h"
#include "tests/unit/data/idx_bytes.h"
#include "tests/unit/data/token_bytes.h"

namespace engine::testing {
namespace {

TEST(DatasetFiles, AreWritten) {
  TempFolder folder;
  folder.Write("text", std::string(999, 'x') + "yz");
  folder.Write("tokens.bin", TokenBytes(Counting(7, 900)));
  folder.Write("images", IdxImages(25));
  folder.Write("labels", IdxLabels(25));
  WriteCifar(folder);
  using std::filesystem::copy_options;
  std::filesystem::copy(folder.path(), DATASET_FILES,
                        copy_options::recursive | copy_options::overwrite_existing);
}

}  // namespace
}  // namespace engine::testing
