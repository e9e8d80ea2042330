// Transfers in words, for errors.
#pragma once

#include "engine/communicator.h"
#include "wire.h"

namespace engine::tcp {

// A sentence's worth of text without allocation.
struct Text {
  char data[128] = {};
  const char* c_str() const noexcept { return data; }
};

// "all-reduce of 1.2 MB (unit 3, sequence 17)", "barrier (sequence 3)"
Text Describe(const Transfer& transfer) noexcept;

// "all-reduce of 300000 float32 (unit 3, sequence 17)"; says so when `header` is not one of ours.
Text Describe(const TransferHeader& header) noexcept;

// How two transfers differ that Describe says the same of: " with another key", or nothing.
Text HiddenDifference(const TransferHeader& a, const TransferHeader& b) noexcept;

}  // namespace engine::tcp
