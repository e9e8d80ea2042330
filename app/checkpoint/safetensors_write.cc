#include <algorithm>
#include <bit>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "app/checkpoint/atomic_file.h"
#include "app/checkpoint/safetensors.h"
#include "app/checkpoint/safetensors_header.h"
#include "kit/digest.h"

namespace engine::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

// Where the data begins is a multiple of this, so that a mapped file gives aligned tensors.
constexpr uint64_t kAlignment = 64;

// Larger element types first: without gaps in the data, that alone aligns every tensor to its
// elements.
std::vector<const NamedTensor*> FileOrder(std::span<const NamedTensor> tensors) {
  std::vector<const NamedTensor*> order;
  for (const NamedTensor& tensor : tensors) order.push_back(&tensor);
  std::stable_sort(order.begin(), order.end(), [](const NamedTensor* a, const NamedTensor* b) {
    return SizeOf(a->view.dtype) > SizeOf(b->view.dtype);
  });
  return order;
}

Result<SafetensorsHeader> DescribeTensors(const std::vector<const NamedTensor*>& order) {
  SafetensorsHeader header;
  uint64_t offset = 0;
  for (const NamedTensor* tensor : order) {
    Result<uint64_t> bytes = CheckedBytes(tensor->view.shape, tensor->view.dtype);
    if (!bytes.ok() || (*bytes > 0 && tensor->view.data == nullptr)) {
      return Status::Error(StatusCode::kInvalidArgument,
                           "tensor '%s' has no memory or no valid size", tensor->name.c_str());
    }
    header.tensors.push_back(
        {tensor->name, tensor->view.dtype, tensor->view.shape, offset, offset + *bytes});
    offset += *bytes;
  }
  return header;
}

Result<std::string> DigestOf(const SafetensorsHeader& header,
                             const std::vector<const NamedTensor*>& order) {
  ENGINE_ASSIGN_OR_RETURN(const std::string digested, DigestedHeader(header));
  kit::Digest digest;
  digest.Add(digested.data(), digested.size());
  for (const NamedTensor* tensor : order) digest.Add(tensor->view.data, tensor->view.size_bytes());
  return digest.Text();
}

// Length and header, padded with spaces.
Result<std::string> FileHead(const SafetensorsHeader& header) {
  ENGINE_ASSIGN_OR_RETURN(std::string text, FormatHeader(header));
  text.append((kAlignment - (kLengthBytes + text.size()) % kAlignment) % kAlignment, ' ');
  if (text.size() > kMaxHeaderBytes) {
    return Status::Error(StatusCode::kInvalidArgument,
                         "the header of %zu bytes is larger than the format allows", text.size());
  }
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), kLengthBytes) + text;
}

Status Write(const std::string& path, std::span<const NamedTensor> tensors,
             const std::map<std::string, std::string>& metadata, std::function<void()> progress) {
  const std::vector<const NamedTensor*> order = FileOrder(tensors);
  ENGINE_ASSIGN_OR_RETURN(SafetensorsHeader header, DescribeTensors(order));
  header.metadata = metadata;
  ENGINE_ASSIGN_OR_RETURN(header.metadata[kDigestKey], DigestOf(header, order));
  ENGINE_ASSIGN_OR_RETURN(const std::string head, FileHead(header));

  ENGINE_ASSIGN_OR_RETURN(std::unique_ptr<AtomicFile> file,
                          AtomicFile::Create(path, std::move(progress)));
  ENGINE_RETURN_IF_ERROR(file->Write(head.data(), head.size()));
  for (const NamedTensor* tensor : order) {
    ENGINE_RETURN_IF_ERROR(file->Write(tensor->view.data, tensor->view.size_bytes()));
  }
  return file->Commit();
}

}  // namespace

Status WriteSafetensors(const std::string& path, std::span<const NamedTensor> tensors,
                        const std::map<std::string, std::string>& metadata,
                        std::function<void()> progress) {
  try {
    const Status status = Write(path, tensors, metadata, std::move(progress));
    if (status.code() != StatusCode::kInvalidArgument) return status;
    return status.WithContext("cannot write '%s'", path.c_str());
  } catch (const std::bad_alloc&) {
    return Status::Error(StatusCode::kResourceExhausted, "cannot write '%s': out of memory",
                         path.c_str());
  }
}

}  // namespace engine::checkpoint
