// Values are sent from the memory that they are kept in. A buffer counts its owner and the messages
// that libzmq has of it; as long as there is one of these the owner changes nothing, and updates
// write into another version. So a version that was published never changes while somebody reads it.
#include "served_buffer.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace engine::zmq_ps {

ServedBuffer* ServedBuffer::Create(size_t count) noexcept {
  const size_t bytes = sizeof(ServedBuffer) + count * sizeof(float);
  void* const memory =
      ::operator new (bytes, std::align_val_t{alignof(ServedBuffer)}, std::nothrow);
  if (!memory) return nullptr;
  auto* const buffer = new (memory) ServedBuffer;
  std::memset(buffer->data(), 0, count * sizeof(float));
  return buffer;
}

void ServedBuffer::Drop() noexcept {
  // Release: our reads come before the owner's next write, which IsAlone or the deletion orders.
  if (references.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  this->~ServedBuffer();
  ::operator delete (this, std::align_val_t{alignof(ServedBuffer)});
}

::zmq::message_t ServedBuffer::Share(size_t count) {
  references.fetch_add(1, std::memory_order_relaxed);
  const auto drop = [](void*, void* buffer) { static_cast<ServedBuffer*>(buffer)->Drop(); };
  try {
    return {data(), count * sizeof(float), drop, this};
  } catch (...) {
    Drop();
    throw;
  }
}

ServedArray::~ServedArray() {
  for (ServedBuffer* version : versions_) version->Drop();
}

// No memory before values come: more may be registered than is stored.
bool ServedArray::Allocate(size_t count) {
  if (!versions_.empty()) return true;
  versions_.reserve(2);
  ServedBuffer* const first = ServedBuffer::Create(count);
  if (first) versions_.push_back(first);
  return first != nullptr;
}

// versions_.front() is the newest; the others are read by answers, or spare.
float* ServedArray::Writable(size_t count) {
  const auto alone = std::find_if(versions_.begin(), versions_.end(),
                                  [](const ServedBuffer* version) { return version->IsAlone(); });
  writable_ = static_cast<size_t>(alone - versions_.begin());
  if (alone == versions_.end()) {
    versions_.reserve(versions_.size() + 1);
    ServedBuffer* const another = ServedBuffer::Create(count);
    if (!another) return nullptr;
    versions_.push_back(another);
  }
  return versions_[writable_]->data();
}

void ServedArray::Publish() noexcept {
  std::swap(versions_.front(), versions_[writable_]);
  writable_ = 0;
  bool has_spare = false;
  std::erase_if(versions_, [&](ServedBuffer* version) {
    if (version == versions_.front() || !version->IsAlone()) return false;
    if (!has_spare) {
      has_spare = true;
      return false;
    }
    version->Drop();
    return true;
  });
}

}  // namespace engine::zmq_ps
