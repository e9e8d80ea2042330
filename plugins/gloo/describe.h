// Transfers in words, for errors.
#pragma once

#include "engine/communicator.h"
#include "wire.h"

namespace engine::gloo {

// A sentence's worth of text without allocation.
struct Text {
  char data[96] = {};
  const char* c_str() const noexcept { return data; }
};

// "all-reduce of 1.2 MB (sequence 17)", "barrier (sequence 3)"
Text Describe(const Transfer& transfer) noexcept;

// "all-reduce of 300000 float32 (sequence 17)"; says so when `header` is not one of ours.
Text Describe(const TransferHeader& header) noexcept;

}  // namespace engine::gloo
