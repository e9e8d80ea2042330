// What a test of the conformance kit demands, as the headers of the SDK have it. Each test begins so:
//
//   constexpr char kHeader[] = "engine/scheduler.h";  // of this file's contracts; CONTRACT names another
//
//   TEST(Scheduler, RunsEveryTask) {
//     MUST("the sentence");
//     for (const uint32_t seed : Seeds(100)) { ... }
//   }
//
// The test suite is the suite of suites.h. MUST: an engine breaks, or trains to something else,
// without it. SHOULD: slower, or harder to use.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace engine::conform {

// To whoever started this process (judge.h): what happens, so that a crash can be said of a test.
void Report(const std::vector<std::string>& event);

#define CONTRACT(level, header, sentence) \
  ::engine::conform::Report({"contract", #level, header, sentence})
#define MUST(sentence) CONTRACT(MUST, kHeader, sentence)
#define SHOULD(sentence) CONTRACT(SHOULD, kHeader, sentence)

// `count` seeds from --seed on; the report names the one under way.
class Seeds {
 public:
  explicit Seeds(uint32_t count);

  struct Iterator {
    uint32_t seed;
    uint32_t operator*() const {
      Report({"seed", std::to_string(seed)});
      return seed;
    }
    void operator++() { ++seed; }
    bool operator==(const Iterator&) const = default;
  };
  Iterator begin() const { return {first_}; }
  Iterator end() const { return {first_ + count_}; }

 private:
  const uint32_t first_, count_;
};

inline std::vector<float> RandomFloats(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

}  // namespace engine::conform
