// Transfers in words, for errors.
#pragma once

#include "control.h"
#include "engine/communicator.h"

namespace engine::shm {

// A sentence's worth of text without allocation.
struct Text {
  char data[128] = {};
  const char* c_str() const noexcept { return data; }
};

// "all-reduce of 300000 float32 (unit 3, sequence 17)", "barrier (sequence 3)"
Text Describe(const Opening& opening, uint32_t unit = Transfer().unit) noexcept;
Text Describe(const Transfer& transfer) noexcept;

// How two openings differ that Describe says the same of: " with another key", or nothing.
Text HiddenDifference(const Opening& a, const Opening& b) noexcept;

// What all ranks must agree on; the rest of the opening is zero.
Opening OpeningOf(const Transfer& transfer) noexcept;

// Whether two ranks are about to do the same.
bool Agree(const Opening& a, const Opening& b) noexcept;

}  // namespace engine::shm
