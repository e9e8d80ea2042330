// What is wrong with a configuration, all of it: so that a file with four mistakes takes one run to mend.
#pragma once

#include <string>
#include <vector>

#include "engine/status.h"

namespace engine::config {

class Problems {
 public:
  // OK is no problem.
  void Add(const Status& status) {
    if (!status.ok()) all_.push_back(status);
  }
  // Of something that is not there; it may be what was left out.
  void AddMissing(const Status& status) {
    if (!left_out_) Add(status);
  }
  // Keys or values that could not be understood are not in the document.
  void LeaveOut(const Status& status) {
    left_out_ = true;
    Add(status);
  }
  bool left_out() const { return left_out_; }
  // Their messages, one below the other, with the code of the first.
  Status ToStatus() const {
    if (all_.empty()) return {};
    constexpr size_t kMost = 20;
    std::string text;
    for (size_t i = 0; i < all_.size() && i < kMost; ++i) {
      text += (i == 0 ? "" : "\n") + std::string(all_[i].message());
    }
    if (all_.size() > kMost) text += "\nand " + std::to_string(all_.size() - kMost) + " more";
    return Status::Error(all_[0].code(), "%s", text.c_str());
  }

 private:
  std::vector<Status> all_;
  bool left_out_ = false;
};

}  // namespace engine::config
