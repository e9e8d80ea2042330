// Transfers in words, for errors.
#pragma once

#include <span>

#include "engine/communicator.h"

namespace engine::nccl {

// A sentence's worth of text without allocation.
struct Text {
  char data[128] = {};
  const char* c_str() const noexcept { return data; }
};

// "all-reduce of 1.2 MB (unit 3, sequence 17)", "barrier (sequence 3)"
Text Describe(const Transfer& transfer) noexcept;
// The same of one; "group of 3 transfers of 5.2 MB in all (unit 3, sequence 17)" of several, with
// the position of the first.
Text Describe(std::span<const Transfer> transfers) noexcept;

// 22809 -> "2.28.9"
Text VersionText(int nccl_version) noexcept;

}  // namespace engine::nccl
