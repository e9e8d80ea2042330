#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cinttypes>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/checkpoint/digest.h"
#include "app/checkpoint/safetensors.h"
#include "app/checkpoint/safetensors_header.h"
#include "core/base/unique_fd.h"

namespace engine::checkpoint {
namespace {

// A regular file, mapped read-only.
class MappedFile {
 public:
  MappedFile() = default;
  ~MappedFile() {
    if (data_) munmap(data_, size_);
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // O_NONBLOCK: a FIFO is refused, not waited for.
  Status Map(const std::string& path) {
    const base::UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (file.valid()) return MapOpen(file.get()).WithContext("%s", path.c_str());
    return Status::Error(StatusCode::kMissingInput, "cannot open '%s': %s", path.c_str(),
                         std::strerror(errno));
  }

  char* data() const { return static_cast<char*>(data_); }
  uint64_t size() const { return size_; }

 private:
  Status MapOpen(int fd) {
    struct stat info {};
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
      return Status::Error(StatusCode::kBadData, "not a regular file");
    }
    if (info.st_size == 0) return Status::Error(StatusCode::kBadData, "the file is empty");
    size_ = static_cast<size_t>(info.st_size);
    void* mapped = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
    if (mapped == MAP_FAILED) {
      return Status::Error(StatusCode::kResourceExhausted, "cannot map the file: %s",
                           std::strerror(errno));
    }
    data_ = mapped;
    return {};
  }

  void* data_ = nullptr;
  size_t size_ = 0;
};

class MappedSafetensors final : public SafetensorsFile {
 public:
  Status Load(const std::string& path) {
    path_ = path;
    ENGINE_RETURN_IF_ERROR(file_.Map(path));
    return Read().WithContext("%s", path.c_str());
  }

  const std::map<std::string, std::string>& metadata() const override { return header_.metadata; }
  std::span<const NamedTensor> tensors() const override { return tensors_; }

  Result<TensorView> Find(const std::string& name) const override {
    const auto found = by_name_.find(name);
    if (found != by_name_.end()) return tensors_[found->second].view;
    return Status::Error(StatusCode::kBadData, "%s: there is no tensor '%s' in this file",
                         path_.c_str(), name.c_str());
  }

 private:
  Status Read() {
    uint64_t length = 0;
    if (file_.size() < kLengthBytes) {
      return Status::Error(StatusCode::kBadData,
                           "%" PRIu64 " bytes are too few for a safetensors file", file_.size());
    }
    std::memcpy(&length, file_.data(), kLengthBytes);
    const uint64_t rest = file_.size() - kLengthBytes;
    if (length > kMaxHeaderBytes || length > rest) {
      return Status::Error(StatusCode::kBadData,
                           "the header would have %" PRIu64 " bytes, but %" PRIu64
                           " follow and %" PRIu64
                           " are allowed; the file is cut short or no safetensors file",
                           length, rest, kMaxHeaderBytes);
    }
    char* data = file_.data() + kLengthBytes + length;
    ENGINE_ASSIGN_OR_RETURN(
        header_, ParseHeader(std::string_view(file_.data() + kLengthBytes, length), rest - length));
    ENGINE_RETURN_IF_ERROR(CheckDigest(data, rest - length));
    AddTensors(data);
    return {};
  }

  // Files of other programs have no digest.
  Status CheckDigest(const char* data, uint64_t size) const {
    const auto expected = header_.metadata.find(kDigestKey);
    if (expected == header_.metadata.end()) return {};
    ENGINE_ASSIGN_OR_RETURN(const std::string digested, DigestedHeader(header_));
    Digest digest;
    digest.Add(digested.data(), digested.size());
    digest.Add(data, size);
    if (digest.Text() == expected->second) return {};
    return Status::Error(StatusCode::kBadData,
                         "the content does not match its digest; the file was damaged or changed "
                         "after it was written");
  }

  void AddTensors(char* data) {
    for (const TensorEntry& entry : header_.tensors) {
      by_name_[entry.name] = tensors_.size();
      tensors_.push_back(
          {entry.name, {Aligned(data + entry.begin, entry), entry.shape, entry.dtype}});
    }
  }

  // Other programs may place a tensor where its elements are not aligned; those are copied.
  void* Aligned(char* data, const TensorEntry& entry) {
    if (reinterpret_cast<uintptr_t>(data) % SizeOf(entry.dtype) == 0) return data;
    const size_t size = entry.end - entry.begin;
    copies_.push_back(std::make_unique<char[]>(size));
    std::memcpy(copies_.back().get(), data, size);
    return copies_.back().get();
  }

  std::string path_;
  MappedFile file_;
  SafetensorsHeader header_;
  std::vector<NamedTensor> tensors_;
  std::map<std::string, size_t> by_name_;
  std::vector<std::unique_ptr<char[]>> copies_;
};

}  // namespace

Result<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  try {
    auto file = std::make_unique<MappedSafetensors>();
    ENGINE_RETURN_IF_ERROR(file->Load(path));
    return std::unique_ptr<SafetensorsFile>(std::move(file));
  } catch (const std::bad_alloc&) {
    return Status::Error(StatusCode::kResourceExhausted, "%s: out of memory", path.c_str());
  }
}

}  // namespace engine::checkpoint
