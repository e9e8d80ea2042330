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
#include <string>
#include <vector>

namespace engine::conform {

enum class Level { kMust, kShould };

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

  class Iterator {
   public:
    explicit Iterator(uint32_t seed) : seed_(seed) {}
    uint32_t operator*() const {
      Report({"seed", std::to_string(seed_)});
      return seed_;
    }
    Iterator& operator++() {
      ++seed_;
      return *this;
    }
    bool operator!=(const Iterator& other) const { return seed_ != other.seed_; }

   private:
    uint32_t seed_;
  };
  Iterator begin() const { return Iterator(first_); }
  Iterator end() const { return Iterator(first_ + count_); }

 private:
  const uint32_t first_, count_;
};

}  // namespace engine::conform
