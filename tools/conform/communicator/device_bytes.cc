#include "tools/conform/communicator/device_bytes.h"

#include <cstring>
#include <map>
#include <mutex>

#include "engine/op.h"
#include "tools/conform/subject.h"

namespace engine::conform {
namespace {

constexpr int64_t kTimeoutMs = 30000;

// A rank's op plugin, for its device.
struct RankDevice {
  std::unique_ptr<MemoryHost> host;
  std::unique_ptr<OpLibrary> library;
  std::unique_ptr<Stream> stream;
  std::mutex mutex;  // of `stream`: ranks copy in callbacks too
};

Status Open(const PluginUnderTest& plugin, int rank, RankDevice* out) {
  out->host = std::make_unique<MemoryHost>(RankInfo{.local_rank = rank});
  ENGINE_ASSIGN_OR_RETURN(out->library, plugin.Create<OpLibrary>(*out->host));
  if (out->library->device() == nullptr) {
    return Status::Error(StatusCode::kPlugin, "%s brings no device", plugin.file().path.c_str());
  }
  Stream* stream = nullptr;
  ENGINE_RETURN_IF_ERROR(out->library->device()->CreateStream(&stream));
  out->stream.reset(stream);
  return {};
}

// Null without such a plugin. Never destroyed: plugins stay loaded until the process ends.
RankDevice* Find(int rank) {
  static auto* const mutex = new std::mutex;
  static auto* const devices = new std::map<int, RankDevice>;  // guarded by mutex
  const PluginUnderTest* ops = HasSubject() ? UnderTest().Other(PluginKind::kOps) : nullptr;
  if (ops == nullptr) return nullptr;
  const std::lock_guard lock(*mutex);
  RankDevice& found = (*devices)[rank];
  if (found.stream == nullptr) {
    const Status opened = Open(*ops, rank, &found);
    ENGINE_CHECK(opened.ok(), "--with: %s", opened.message());
  }
  return &found;
}

}  // namespace

Device* DeviceOfRank(int rank) {
  RankDevice* const found = Find(rank);
  return found != nullptr ? found->library->device() : nullptr;
}

DeviceBytes::DeviceBytes(int rank, size_t size_bytes, SharedMemory* shared)
    : rank_(rank), size_(size_bytes) {
  Device* const device = DeviceOfRank(rank);
  if (device == nullptr && shared == nullptr) {
    data_ = {new uint8_t[size_bytes](), std::default_delete<uint8_t[]>()};
    return;
  }
  void* memory = nullptr;
  const Status status =
      shared ? shared->Allocate(size_bytes, &memory) : device->Allocate(size_bytes, &memory);
  if (!status.ok()) throw status;  // of shared memory: a peer is gone
  data_ = {static_cast<uint8_t*>(memory),
           [=](uint8_t* data) { shared ? shared->Free(data) : device->Free(data); }};
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

}  // namespace engine::conform
