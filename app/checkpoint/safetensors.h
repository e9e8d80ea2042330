// Tensors in a file: the safetensors format (huggingface/safetensors), read with every size
// checked, written so that a crash at any moment leaves the old file or the new one.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>

#include "engine/status.h"
#include "engine/tensor.h"

namespace engine::checkpoint {

struct NamedTensor {
  std::string name;
  TensorView view;
};

// Writes `path` through a temporary file in the same folder: write, fsync, rename, fsync of the
// folder (see atomic_file.h). Tensors lie in the given order, but larger element types first, which
// aligns each to its elements; the data begins at a multiple of 64 bytes.
//
// Adds a digest to the metadata ("digest": "xxh3_128:<hex>") over everything else: the header
// without the digest as compact JSON with sorted keys, then the data. kStorage with path and
// reason; the old file is then untouched. kInvalidArgument for a name that is there twice or not
// UTF-8. [any-thread], also for one path at once: one of the contents stays.
Status WriteSafetensors(const std::string& path, std::span<const NamedTensor> tensors,
                        const std::map<std::string, std::string>& metadata);

// An open file, mapped read-only: views stay valid while the object lives, and are never written
// to. [any-thread]
class SafetensorsFile {
 public:
  // kMissingInput, or kBadData naming what is wrong: length, header, an unknown dtype, offsets that
  // overlap, leave holes or exceed the file, a shape that does not match its bytes, a wrong digest.
  // A file without a digest, as other programs write them, is accepted.
  static Result<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);
  virtual ~SafetensorsFile() = default;
  virtual const std::map<std::string, std::string>& metadata() const = 0;
  virtual std::span<const NamedTensor> tensors() const = 0;
  // kBadData when there is none of this name.
  virtual Result<TensorView> Find(const std::string& name) const = 0;

 protected:
  SafetensorsFile() = default;
};

}  // namespace engine::checkpoint
