#include <cinttypes>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "app/checkpoint/data_digest.h"
#include "app/checkpoint/safetensors.h"
#include "app/checkpoint/safetensors_header.h"
#include "kit/digest.h"

namespace engine::checkpoint {
namespace {

// Files of other programs have no digest. "xxh3_128:" are those of before: of the bytes one after the other.
Status CheckDigest(const SafetensorsHeader& header, std::span<const uint8_t> data) {
  const auto expected = header.metadata.find(kDigestKey);
  if (expected == header.metadata.end()) return {};
  ENGINE_ASSIGN_OR_RETURN(const std::string text, DigestedHeader(header));
  std::string found;
  if (expected->second.starts_with("xxh3_128:")) {
    kit::Digest digest;
    digest.Add(text.data(), text.size());
    digest.Add(data.data(), data.size());
    found = digest.Text();
  } else {
    DataDigest digest;
    digest.Add(DataDigest::kHeaderPlace, text.data(), text.size());
    for (const TensorEntry& tensor : header.tensors) {
      digest.Add(tensor.begin, data.data() + tensor.begin, tensor.end - tensor.begin);
    }
    found = digest.Text();
  }
  if (found == expected->second) return {};
  return Status::Error(StatusCode::kBadData,
                       "the content does not match its digest; the file was damaged or changed "
                       "after it was written");
}

}  // namespace

Result<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path,
                                                               ForeignTypes types) {
  try {
    ENGINE_ASSIGN_OR_RETURN(kit::MappedFile mapped, kit::MappedFile::Open(path));
    std::unique_ptr<SafetensorsFile> file(new SafetensorsFile(path, std::move(mapped)));
    ENGINE_RETURN_IF_ERROR(file->Read(types).WithContext("%s", path.c_str()));
    return file;
  } catch (const std::bad_alloc&) {
    return Status::Error(StatusCode::kResourceExhausted, "%s: out of memory", path.c_str());
  }
}

Status SafetensorsFile::Read(ForeignTypes types) {
  const std::span<const uint8_t> bytes = file_.bytes();
  if (bytes.size() < kLengthBytes) {
    return Status::Error(StatusCode::kBadData, "%zu bytes are too few for a safetensors file",
                         bytes.size());
  }
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  const std::span<const uint8_t> rest = bytes.subspan(kLengthBytes);
  if (length > kMaxHeaderBytes || length > rest.size()) {
    return Status::Error(StatusCode::kBadData,
                         "the header would have %" PRIu64 " bytes, but %zu follow and %" PRIu64
                         " are allowed; the file is cut short or no safetensors file",
                         length, rest.size(), kMaxHeaderBytes);
  }
  const std::span<const uint8_t> data = rest.subspan(length);
  const std::string_view text(reinterpret_cast<const char*>(rest.data()), length);
  ENGINE_ASSIGN_OR_RETURN(SafetensorsHeader header, ParseHeader(text, data.size(), types));
  ENGINE_RETURN_IF_ERROR(CheckDigest(header, data));
  for (const TensorEntry& entry : header.tensors) {
    if (!entry.foreign.empty()) {
      foreign_.push_back({entry.name, entry.foreign, entry.shape, data.data() + entry.begin});
      continue;
    }
    void* const values = Aligned(data.data() + entry.begin, entry.dtype, entry.end - entry.begin);
    by_name_[entry.name] = tensors_.size();
    tensors_.push_back({entry.name, {values, entry.shape, entry.dtype}});
  }
  metadata_ = std::move(header.metadata);
  return {};
}

// Other programs may place a tensor where its elements are not aligned; those are copied. A view
// has no const, but nobody writes to the views of a file.
void* SafetensorsFile::Aligned(const uint8_t* data, DType dtype, size_t size_bytes) {
  if (reinterpret_cast<uintptr_t>(data) % SizeOf(dtype) == 0) return const_cast<uint8_t*>(data);
  copies_.push_back(std::make_unique<uint8_t[]>(size_bytes));
  std::memcpy(copies_.back().get(), data, size_bytes);
  return copies_.back().get();
}

Result<TensorView> SafetensorsFile::Find(const std::string& name) const {
  const auto found = by_name_.find(name);
  if (found != by_name_.end()) return tensors_[found->second].view;
  return Status::Error(StatusCode::kBadData, "%s: there is no tensor '%s' in this file",
                       path_.c_str(), name.c_str());
}

}  // namespace engine::checkpoint
