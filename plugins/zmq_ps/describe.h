// Transfers in words, for errors.
#pragma once

#include <string>

#include "engine/communicator.h"
#include "wire.h"

namespace engine::zmq_ps {

class PooledWork;
struct ServerAddress;

// A sentence's worth of text without allocation.
struct Text {
  char data[160] = {};
  const char* c_str() const noexcept { return data; }
};

// "all-reduce of 300000 float32 (sum, sequence 17)", "barrier (sequence 3)"
Text Describe(const Transfer& transfer) noexcept;
Text Describe(const SliceSpec& spec, uint64_t sequence) noexcept;
Text Describe(const PooledWork& work) noexcept;

// "server 1 at tcp://...", "the parameter server of rank 1 at tcp://..."
std::string Describe(const ServerAddress& address);

// "rank 2", "ranks 0, 2 and 3"
std::string ListRanks(const std::vector<uint32_t>& ranks);

}  // namespace engine::zmq_ps
