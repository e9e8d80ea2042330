#include "app/checkpoint/digest.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <new>

namespace engine::checkpoint {

struct Digest::State {
  XXH3_state_t* xxh = XXH3_createState();
  ~State() { XXH3_freeState(xxh); }
};

Digest::Digest() : state_(std::make_unique<State>()) {
  if (!state_->xxh) throw std::bad_alloc();
  XXH3_128bits_reset(state_->xxh);
}

Digest::~Digest() = default;

void Digest::Add(const void* data, size_t size_bytes) noexcept {
  if (size_bytes > 0) XXH3_128bits_update(state_->xxh, data, size_bytes);
}

std::string Digest::Text() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_->xxh);
  return fmt::format("xxh3_128:{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace engine::checkpoint
