// A hook that says how gradients travel (HookStage::kWire), with memory for what it packs.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "engine/ext/wire_format.h"
#include "tools/conform/hook/hook_rig.h"

namespace engine::conform {

inline WireFormat* WireOf(GradientHook& hook) {
  return Query<WireFormat>(hook);
}

// Bytes on the wire of `count` elements.
inline int64_t WireBytes(const WireFormat& format, int64_t count) {
  const WireTraits traits = format.wire_traits();
  return traits.kind == WireKind::kPacked ? format.PackedBytes(count)
                                          : count * static_cast<int64_t>(SizeOf(traits.dtype));
}

// Aligned memory with a margin behind it that nobody may touch.
class WireBytesOf {
 public:
  WireBytesOf(const WireFormat& format, int64_t count, uint8_t fill = 0)
      : size_(static_cast<size_t>(WireBytes(format, count))),
        memory_((size_ + kMargin) / sizeof(Aligned) + 2) {
    std::memset(data(), fill, size_);
    std::memset(data() + size_, kMarginFill, kMargin);
  }
  uint8_t* data() { return memory_.data()->bytes; }
  std::vector<uint8_t> bytes() { return {data(), data() + size_}; }
  bool margin_is_whole() {
    for (size_t i = 0; i < kMargin; ++i) {
      if (data()[size_ + i] != kMarginFill) return false;
    }
    return true;
  }

 private:
  struct alignas(16) Aligned {
    uint8_t bytes[16];
  };
  static constexpr size_t kMargin = 64;
  static constexpr uint8_t kMarginFill = 0x5a;
  const size_t size_;
  std::vector<Aligned> memory_;
};

// One span of a gradient of one rank, with its states.
struct WireSpan {
  std::vector<float> gradient;
  std::array<std::vector<float>, kMaxWireStates> states;
  float scale = 1;

  WireSpan(const WireFormat& format, std::vector<float> values) : gradient(std::move(values)) {
    for (int32_t s = 0; s < format.wire_traits().state_count; ++s) {
      states[s].assign(gradient.size(), 0);
    }
  }
  int64_t count() const { return static_cast<int64_t>(gradient.size()); }
  WireCall Call(uint8_t* wire, uint32_t accumulate = 0) {
    WireCall call{.accumulate = accumulate,
                  .name = "layer.weight",
                  .gradient = gradient.data(),
                  .wire = wire,
                  .scale = &scale,
                  .count = count()};
    for (int32_t s = 0; s < kMaxWireStates; ++s) {
      if (!states[s].empty()) call.states[s] = states[s].data();
    }
    return call;
  }
};

// What a format makes of a span; nothing but the wire is written.
inline std::vector<uint8_t> Pack(WireFormat& format, WireSpan& span, uint8_t fill = 0) {
  WireBytesOf bytes(format, span.count(), fill);
  Must(format.Pack(span.Call(bytes.data())));
  EXPECT_TRUE(bytes.margin_is_whole());
  return bytes.bytes();
}

// What becomes of `before` with these bytes.
inline std::vector<float> Unpack(WireFormat& format, const std::vector<uint8_t>& bytes,
                                 std::vector<float> before, uint32_t accumulate = 0) {
  WireSpan span(format, std::move(before));
  WireBytesOf wire(format, span.count());
  std::memcpy(wire.data(), bytes.data(), bytes.size());
  Must(format.Unpack(span.Call(wire.data(), accumulate)));
  return span.gradient;
}

}  // namespace engine::conform
