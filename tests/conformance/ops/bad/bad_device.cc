// The plugin bad_device: a device that does what is queued when somebody waits for it, with the fault
// that the option says.
#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/ext/accelerator.h"
#include "engine/plugin.h"
#include "kit/create.h"
#include "kit/float16.h"
#include "tools/conform/ops/device_memory.h"

namespace engine::bad_device {
namespace {

using Work = std::vector<std::function<void()>>;

struct LazyEvent final : EventBase {
  Status WaitHost(int64_t timeout_ms) noexcept override {
    return recorded->Synchronize(timeout_ms);
  }
  void* native() noexcept override { return nullptr; }
  StreamBase* recorded = nullptr;
};

struct LazyStream final : StreamBase {
  explicit LazyStream(bool is_deaf) : deaf(is_deaf) {}
  Status Record(Event* event) noexcept override {
    static_cast<LazyEvent*>(event)->recorded = this;
    return {};
  }
  Status Wait(Event* event) noexcept override { return deaf ? Status() : event->WaitHost(0); }
  Status Synchronize(int64_t) noexcept override {
    for (const auto& one : std::exchange(work, {})) one();
    return {};
  }
  void* native() noexcept override { return nullptr; }
  const bool deaf;  // to events
  Work work;
};

struct LazyRecording final : RecordingBase {
  Status Launch(Stream* stream) noexcept override {
    Work& to = static_cast<LazyStream*>(stream)->work;
    to.insert(to.end(), work.begin(), work.end());
    return {};
  }
  Work work;
};

class BadDevice final : public conform::HostDevice, public AcceleratorBase, public FlatMathBase {
 public:
  explicit BadDevice(std::string_view fault) : fault_(fault) {}

  void* Query(std::string_view id) noexcept override { return Offer<Accelerator>(id, this); }
  const char* type() const noexcept override { return Is("type") ? "cuda" : "cpu"; }
  Status Allocate(size_t size_bytes, void** out) noexcept override {
    if (size_bytes > SIZE_MAX / 4) {
      return Status::Error(StatusCode::kResourceExhausted, "%zu", Is("message") ? 0 : size_bytes);
    }
    ENGINE_RETURN_IF_ERROR(HostDevice::Allocate(size_bytes + 32, out));
    if (Is("alignment")) *out = static_cast<char*>(*out) + 32;
    return {};
  }
  void Free(void* memory) noexcept override {
    if (!Is("alignment")) HostDevice::Free(memory);
  }
  Status Copy(void* to, const void* from, size_t size_bytes, Stream* stream) noexcept override {
    if (Is("host_memory") && from == lent_) return {};
    return Queue(stream, [=, this] { (void)HostDevice::Copy(to, from, size_bytes, nullptr); });
  }
  Status Zero(void* to, size_t size_bytes, Stream* stream) noexcept override {
    const size_t more = Is("zero") ? 1 : 0;
    return Queue(stream, [=, this] { (void)HostDevice::Zero(to, size_bytes + more, nullptr); });
  }
  Status CreateStream(Stream** out) noexcept override {
    return *out = new LazyStream(Is("event")), Status();
  }
  Status CreateEvent(Event** out) noexcept override { return *out = new LazyEvent, Status(); }

  int32_t ordinal() const noexcept override { return 0; }
  FlatMath& math() noexcept override { return *this; }
  Status AllocateHost(size_t size_bytes, void** out) noexcept override {
    ENGINE_RETURN_IF_ERROR(HostDevice::Allocate(size_bytes, out));
    lent_ = *out;
    return {};
  }
  void FreeHost(void* memory) noexcept override { HostDevice::Free(memory); }
  Status BeginRecording(Stream* stream) noexcept override { return stream->Synchronize(0); }
  Status EndRecording(Stream* stream, Recording** out) noexcept override {
    auto* const recording = new LazyRecording;
    *out = recording;
    recording->work = std::exchange(static_cast<LazyStream*>(stream)->work, {});
    return Is("recording") ? recording->Launch(stream) : Status();
  }
  Status Fault() noexcept override { return {}; }

  FlatKernel* FindKernel(std::string_view) noexcept override {
    return Is("kernel") ? reinterpret_cast<FlatKernel*>(this) : nullptr;
  }
  Status FillQuotient(const float* divisor, float factor, float* scales, int64_t count,
                      Stream* stream) noexcept override {
    const float least = Is("quotient") ? 1 : 0;
    return Queue(
        stream, [=] { std::fill_n(scales, count, *divisor > least ? factor / *divisor : factor); });
  }
  Status Convert(const void* from, DType from_type, void* to, DType to_type, int64_t count,
                 Stream* stream) noexcept override {
    if (from_type != DType::kFloat32 || to_type != DType::kBFloat16) {
      return Is("any_type") ? Status() : Status::Error(StatusCode::kUnsupported, "no such types");
    }
    const float more = Is("rounding") ? 1.01f : 1;
    return Queue(stream, [=] {
      std::transform(static_cast<const float*>(from), static_cast<const float*>(from) + count,
                     static_cast<uint16_t*>(to),
                     [=](float x) { return kit::ToBFloat16(more * x); });
    });
  }
  Status Add(float* target, const float* source, int64_t count, Stream* stream) noexcept override {
    return Queue(stream,
                 [=] { std::transform(source, source + count, target, target, std::plus()); });
  }

 private:
  bool Is(std::string_view name) const { return name == fault_; }
  static Status Queue(Stream* stream, std::function<void()> work) {
    static_cast<LazyStream*>(stream)->work.push_back(std::move(work));
    return {};
  }

  const std::string fault_;
  const void* lent_ = nullptr;
};

class Library final : public OpLibraryBase {
 public:
  explicit Library(const Options& options) : device_(options.String("fault")) {}
  Device* device() noexcept override { return &device_; }
  Status CreateOp(std::string_view, const Options&, Op**) noexcept override {
    return Status::Error(StatusCode::kConfig, "it has no ops");
  }

 private:
  BadDevice device_;
};

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = DescribePlugin(
    {.name = "bad_device",
     .version = "1.0.0",
     .kind = PluginKind::kOps,
     .device = "cpu",
     .doc = "a device that is wrong",
     .create = kit::Create<Library>},
    std::array<OpName, 1>{"none"}, std::array{OptionSpec{.name = "fault", .doc = "what is wrong"}});

}  // namespace engine::bad_device
