// Tensors in a file: the safetensors format (huggingface/safetensors), read with every size
// checked, written so that a crash at any moment leaves the old file or the new one.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "app/checkpoint/data_digest.h"
#include "app/checkpoint/safetensors_header.h"
#include "engine/status.h"
#include "engine/tensor.h"
#include "kit/file.h"

namespace engine::checkpoint {

struct NamedTensor {
  std::string name;
  TensorView view;
};

// Of a type that the engine does not have: `dtype` is its name in the format ("F64").
struct ForeignTensor {
  std::string name, dtype;
  Shape shape;
  const uint8_t* data = nullptr;  // little-endian, perhaps not aligned
};

// Writes `path` through a temporary file in the same folder: write, fsync, rename, fsync of the
// folder (see atomic_file.h). Tensors lie in the given order, but larger element types first, which
// aligns each to its elements; the data begins at a multiple of 64 bytes.
//
// Adds a digest to the metadata ("digest": "xxh3_128_sum:<hex>", see data_digest.h) over everything else:
// the header without the digest as compact JSON with sorted keys, and the data. kStorage with path and
// reason; the old file is then untouched. kInvalidArgument for a name that is there twice or not
// UTF-8. [any-thread], also for one path at once: one of the contents stays.
Status WriteSafetensors(const std::string& path, std::span<const NamedTensor> tensors,
                        const std::map<std::string, std::string>& metadata);

// For those who write a file together, each some of its data. LayOut brings tensors into their order and
// says where they lie; HeadOf gives what stands before the data, of which `digest` is. Errors as above.
Result<SafetensorsHeader> LayOut(std::vector<NamedTensor>& tensors,
                                 const std::map<std::string, std::string>& metadata);
Result<std::string> HeadOf(SafetensorsHeader header, DataDigest digest);

// An open file, mapped read-only: views stay valid while the object lives, and are never written
// to. Constant after Open. [any-thread]
class SafetensorsFile {
 public:
  // kMissingInput, or kBadData naming what is wrong: length, header, an unknown dtype, offsets that
  // overlap, leave holes or exceed the file, a shape that does not match its bytes, a wrong digest.
  // A file without a digest, as other programs write them, is accepted.
  static Result<std::unique_ptr<SafetensorsFile>> Open(const std::string& path,
                                                       ForeignTypes types = ForeignTypes::kRefuse);
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  std::span<const NamedTensor> tensors() const { return tensors_; }
  std::span<const ForeignTensor> foreign() const { return foreign_; }
  // kBadData when there is none of this name.
  Result<TensorView> Find(const std::string& name) const;

 private:
  SafetensorsFile(std::string path, kit::MappedFile file)
      : path_(std::move(path)), file_(std::move(file)) {}
  Status Read(ForeignTypes types);
  void* Aligned(const uint8_t* data, DType dtype, size_t size_bytes);

  const std::string path_;
  const kit::MappedFile file_;
  std::map<std::string, std::string> metadata_;
  std::vector<NamedTensor> tensors_;
  std::vector<ForeignTensor> foreign_;
  std::map<std::string, size_t> by_name_;
  std::vector<std::unique_ptr<uint8_t[]>> copies_;
};

}  // namespace engine::checkpoint
