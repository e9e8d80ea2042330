// Which images there are, and of which class each is.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/status.h"
#include "kit/digest.h"

namespace engine::images {

// Paths of images, by number. They begin with one folder, and lie in one text: there may be
// millions.
class FileList {
 public:
  int64_t size() const { return static_cast<int64_t>(labels_.size()); }
  std::string Path(int64_t i) const;
  int32_t label(int64_t i) const { return labels_[static_cast<size_t>(i)]; }
  // Paths behind the folder, classes, and the sizes of files.
  void AddTo(kit::Digest& digest) const;

  void SetFolder(const std::string& folder) { folder_ = folder; }
  void Add(std::string_view path, int32_t label, int64_t size_bytes);

 private:
  std::string folder_, paths_;
  std::vector<uint64_t> begins_;
  std::vector<int32_t> labels_;
  std::vector<int64_t> sizes_;
};

struct Listing {
  std::vector<std::string> classes;  // sorted
  FileList train, held_out;
  bool has_held_out = false;  // files of its own
};

// `path` is a folder with a folder for each class; or one with such folders `train` and, held out,
// `val` or `test`; or a CSV list whose lines are the path of an image, relative to the list, and
// its class. `eval_path`, or empty, is what is held out: a folder with folders of classes, or a
// list. Files in folders count by their names, at any depth, in the order of their paths; names
// with a dot at their beginning do not. kMissingInput; kBadData when there is no image, or none
// in a folder of a class, or a class to evaluate that there is none of to train on.
Result<Listing> ListImages(const std::string& path, const std::string& eval_path);

}  // namespace engine::images
