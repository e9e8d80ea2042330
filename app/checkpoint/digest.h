// A checksum of bytes against corruption, not against an attacker: XXH3 with 128 bits.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace engine::checkpoint {

class Digest {
 public:
  Digest();  // throws std::bad_alloc
  ~Digest();
  void Add(const void* data, size_t size_bytes) noexcept;
  // Of all bytes so far: "xxh3_128:" and 32 hexadecimal digits, most significant first.
  std::string Text() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace engine::checkpoint
