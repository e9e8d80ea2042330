#include <algorithm>
#include <bit>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "app/checkpoint/atomic_file.h"
#include "app/checkpoint/data_digest.h"
#include "app/checkpoint/safetensors.h"
#include "app/checkpoint/safetensors_header.h"

namespace engine::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

// Where the data begins is a multiple of this, so that a mapped file gives aligned tensors, and their place
// in the data tells AtomicFile's writer where in a page they belong.
constexpr uint64_t kAlignment = AtomicFile::kPageBytes;

}  // namespace

// Larger element types first: without gaps in the data, that alone aligns every tensor to its
// elements.
Result<SafetensorsHeader> LayOut(std::vector<NamedTensor>& tensors,
                                 const std::map<std::string, std::string>& metadata) {
  std::ranges::stable_sort(tensors, std::greater(),
                           [](const NamedTensor& tensor) { return SizeOf(tensor.view.dtype); });
  SafetensorsHeader header{.metadata = metadata};
  uint64_t offset = 0;
  for (const auto& [name, view] : tensors) {
    const Result<uint64_t> bytes = CheckedBytes(view.shape, SizeOf(view.dtype));
    if (!bytes.ok() || (*bytes > 0 && view.data == nullptr)) {
      return Status::Error(StatusCode::kInvalidArgument,
                           "tensor '%s' has no memory or no valid size", name.c_str());
    }
    header.tensors.push_back({.name = name,
                              .dtype = view.dtype,
                              .shape = view.shape,
                              .begin = offset,
                              .end = offset + *bytes});
    offset += *bytes;
  }
  return header;
}

// Of one length, whatever the digest.
Result<std::string> HeadOf(SafetensorsHeader header, DataDigest digest) {
  ENGINE_ASSIGN_OR_RETURN(const std::string digested, DigestedHeader(header));
  digest.Add(DataDigest::kHeaderPlace, digested.data(), digested.size());
  header.metadata[kDigestKey] = digest.Text();
  ENGINE_ASSIGN_OR_RETURN(std::string text, FormatHeader(header));
  text.append((kAlignment - (kLengthBytes + text.size()) % kAlignment) % kAlignment, ' ');
  if (text.size() > kMaxHeaderBytes) {
    return Status::Error(StatusCode::kInvalidArgument,
                         "the header of %zu bytes is larger than the format allows", text.size());
  }
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), kLengthBytes) + text;
}

Status WriteSafetensors(const std::string& path, std::span<const NamedTensor> tensors,
                        const std::map<std::string, std::string>& metadata) {
  std::vector<NamedTensor> order(tensors.begin(), tensors.end());
  const auto head_of = [&]() -> Result<std::string> {
    ENGINE_ASSIGN_OR_RETURN(const SafetensorsHeader header, LayOut(order, metadata));
    DataDigest digest;
    for (size_t i = 0; i < order.size(); ++i) {
      digest.Add(header.tensors[i].begin, order[i].view.data, order[i].view.size_bytes());
    }
    return HeadOf(header, digest);
  };
  const auto head = head_of();
  if (!head.ok()) return head.status().WithContext("cannot write '%s'", path.c_str());
  ENGINE_ASSIGN_OR_RETURN(std::unique_ptr<AtomicFile> file, AtomicFile::Create(path));
  ENGINE_RETURN_IF_ERROR(file->Write(head->data(), head->size()));
  for (const auto& [name, view] : order) {
    ENGINE_RETURN_IF_ERROR(file->Write(view.data, view.size_bytes()));
  }
  return file->Commit();
}

}  // namespace engine::checkpoint
