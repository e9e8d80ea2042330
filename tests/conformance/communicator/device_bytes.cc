#include "tests/conformance/communicator/device_bytes.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "engine/op.h"
#include "tests/conformance/plugin_under_test.h"
#include "tests/support/memory_host.h"

namespace engine::test {
namespace {

constexpr int64_t kTimeoutMs = 30000;

// A rank's op plugin, for its device.
struct RankDevice {
  std::unique_ptr<MemoryHost> host;
  std::unique_ptr<OpLibrary> library;
  std::unique_ptr<Stream> stream;
  std::mutex mutex;  // of `stream`: ranks copy in callbacks too
};

Status Open(const char* path, int rank, RankDevice* out) {
  ENGINE_ASSIGN_OR_RETURN(const PluginUnderTest plugin, PluginUnderTest::Load(path));
  if (plugin.header().kind != PluginKind::kOps) {
    return Status::Error(StatusCode::kPlugin, "%s is no op plugin", path);
  }
  out->host = std::make_unique<MemoryHost>(RankInfo{.local_rank = rank},
                                           std::make_shared<MemoryStoreTable>());
  ENGINE_ASSIGN_OR_RETURN(out->library, plugin.Create<OpLibrary>(*out->host));
  if (out->library->device() == nullptr) {
    return Status::Error(StatusCode::kPlugin, "%s brings no device", path);
  }
  Stream* stream = nullptr;
  ENGINE_RETURN_IF_ERROR(out->library->device()->CreateStream(&stream));
  out->stream.reset(stream);
  return {};
}

// Null without the variable. Never destroyed: plugins stay loaded until the process ends.
RankDevice* Find(int rank) {
  static auto* const mutex = new std::mutex;
  static auto* const devices = new std::map<int, RankDevice>;  // guarded by mutex
  const char* const path = std::getenv("ENGINE_CONFORMANCE_OPS");
  if (path == nullptr || *path == '\0') return nullptr;
  const std::lock_guard lock(*mutex);
  RankDevice& found = (*devices)[rank];
  if (found.stream == nullptr) {
    const Status opened = Open(path, rank, &found);
    ENGINE_CHECK(opened.ok(), "ENGINE_CONFORMANCE_OPS: %s", opened.message());
  }
  return &found;
}

}  // namespace

Device* DeviceOfRank(int rank) {
  RankDevice* const found = Find(rank);
  return found != nullptr ? found->library->device() : nullptr;
}

DeviceBytes::DeviceBytes(int rank, size_t size_bytes)
    : rank_(rank), size_(size_bytes), data_(Allocate(DeviceOfRank(rank), size_bytes)) {}

std::unique_ptr<uint8_t, DeviceBytes::Delete> DeviceBytes::Allocate(Device* device,
                                                                    size_t size_bytes) {
  if (device == nullptr) return {new uint8_t[size_bytes](), Delete{nullptr}};
  void* memory = nullptr;
  const Status status = device->Allocate(size_bytes, &memory);
  ENGINE_CHECK(status.ok(), "%s", status.message());
  return {static_cast<uint8_t*>(memory), Delete{device}};
}

void DeviceBytes::Delete::operator()(uint8_t* memory) const {
  if (device == nullptr) {
    delete[] memory;
  } else {
    device->Free(memory);
  }
}

void DeviceBytes::Set(const std::vector<uint8_t>& bytes) {
  ENGINE_CHECK(bytes.size() == size_, "%zu bytes for %zu", bytes.size(), size_);
  Copy(data(), bytes.data());
}

std::vector<uint8_t> DeviceBytes::Get() const {
  std::vector<uint8_t> bytes(size_);
  Copy(bytes.data(), data());
  return bytes;
}

void DeviceBytes::Copy(void* target, const void* source) const {
  RankDevice* const on = Find(rank_);
  if (on == nullptr) {
    std::memcpy(target, source, size_);
    return;
  }
  const std::lock_guard lock(on->mutex);
  Status status = on->library->device()->Copy(target, source, size_, on->stream.get());
  if (status.ok()) status = on->stream->Synchronize(kTimeoutMs);
  ENGINE_CHECK(status.ok(), "%s", status.message());
}

}  // namespace engine::test
