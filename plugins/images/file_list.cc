#include "file_list.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>

#include "data_kit/csv.h"
#include "image.h"

namespace engine::images {
namespace {

namespace fs = std::filesystem;

// An image, with its path behind the folder of the list.
struct Found {
  std::string path, class_name;
  int64_t size_bytes;
};

Status CannotRead(const fs::path& path, const std::error_code& reason) {
  return Status::Error(StatusCode::kMissingInput, "cannot read '%s': %s", path.c_str(),
                       reason.message().c_str());
}

// Images below `folder`/`class_name`, with paths behind `folder`.
Status FindInClass(const fs::path& folder, const std::string& class_name,
                   std::vector<Found>* found) {
  constexpr int kMostFolders = 16;
  const size_t before = found->size();
  std::error_code error;
  const auto options = fs::directory_options::follow_directory_symlink;
  fs::recursive_directory_iterator it(folder / class_name, options, error);
  for (; !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
    const std::string name = it->path().filename().native();
    if (it.depth() > kMostFolders) {
      return Status::Error(StatusCode::kBadData,
                           "%s: more than %d folders in each other: a link that leads back?",
                           it->path().c_str(), kMostFolders);
    }
    if (name.starts_with('.')) {
      it.disable_recursion_pending();
    } else if (IsImageName(name) && it->is_regular_file(error)) {
      found->push_back({it->path().lexically_relative(folder).native(), class_name,
                        static_cast<int64_t>(it->file_size(error))});
    }
    if (error) return CannotRead(it->path(), error);
  }
  if (error) return CannotRead(folder / class_name, error);
  if (found->size() > before) return {};
  return Status::Error(StatusCode::kBadData,
                       "%s: no image (.png, .jpg, .jpeg) in this folder of a class; fill it or "
                       "remove it",
                       (folder / class_name).c_str());
}

Result<std::vector<Found>> FindInFolder(const fs::path& folder) {
  std::vector<Found> found;
  std::error_code error;
  fs::directory_iterator it(folder, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    const std::string name = it->path().filename().native();
    std::error_code ignored;
    if (name.starts_with('.') || !it->is_directory(ignored)) continue;
    ENGINE_RETURN_IF_ERROR(FindInClass(folder, name, &found));
  }
  if (error) return CannotRead(folder, error);
  std::ranges::sort(found, {}, &Found::path);
  if (!found.empty()) return found;
  return Status::Error(
      StatusCode::kBadData,
      "%s: no image (.png, .jpg, .jpeg) in a folder of this folder; it must have a "
      "folder for each class, or train and val with such folders",
      folder.c_str());
}

// A first line whose path is that of no image is a header.
Result<std::vector<Found>> ReadList(const std::string& path) {
  ENGINE_ASSIGN_OR_RETURN(const data_kit::CsvFile file, data_kit::CsvFile::Open(path, ','));
  const fs::path folder = fs::path(path).parent_path();
  std::vector<Found> found;
  data_kit::CsvRecord record;
  for (int64_t i = 0; i < file.records(); ++i) {
    ENGINE_RETURN_IF_ERROR(file.Split(i, &record));
    const auto& fields = record.fields();
    if (fields.size() < 2 || fields[1].empty()) {
      return file.BadField(i, 1, "", "there is no class; a line is path,class");
    }
    if (i == 0 && !IsImageName(fields[0])) continue;
    std::error_code error;
    const auto size = fs::file_size(folder / fields[0], error);
    if (error) {
      return file.BadField(
          i, 0, "", std::string(fields[0]).append(": cannot be read: ").append(error.message()));
    }
    found.push_back({std::string(fields[0]), std::string(fields[1]), static_cast<int64_t>(size)});
  }
  if (!found.empty()) return found;
  return Status::Error(StatusCode::kBadData, "%s: there is no image in this list", path.c_str());
}

struct Part {
  std::string folder;  // that paths begin with
  std::vector<Found> found;
};

Result<Part> Find(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) return CannotRead(path, error);
  const bool is_folder = fs::is_directory(status);
  Part part{.folder = is_folder ? path : fs::path(path).parent_path().native(), .found = {}};
  ENGINE_ASSIGN_OR_RETURN(part.found, is_folder ? FindInFolder(path) : ReadList(path));
  return part;
}

// Classes are numbered by `classes`, those that there are to train on.
Status AddTo(FileList* list, const Part& part, const std::vector<std::string>& classes) {
  list->SetFolder(part.folder);
  for (const Found& image : part.found) {
    const auto at = std::ranges::lower_bound(classes, image.class_name);
    if (at == classes.end() || *at != image.class_name) {
      return Status::Error(StatusCode::kBadData, "%s/%s: its class '%s' has no image to train on",
                           part.folder.c_str(), image.path.c_str(), image.class_name.c_str());
    }
    list->Add(image.path, static_cast<int32_t>(at - classes.begin()), image.size_bytes);
  }
  return {};
}

}  // namespace

std::string FileList::Path(int64_t i) const {
  const auto at = static_cast<size_t>(i);
  const size_t end = at + 1 < begins_.size() ? begins_[at + 1] : paths_.size();
  return (fs::path(folder_) / paths_.substr(begins_[at], end - begins_[at])).native();
}

void FileList::Add(std::string_view path, int32_t label, int64_t size_bytes) {
  begins_.push_back(paths_.size());
  paths_ += path;
  labels_.push_back(label);
  sizes_.push_back(size_bytes);
}

void FileList::AddTo(kit::Digest& digest) const {
  digest.Add(paths_.data(), paths_.size());
  digest.Add(labels_.data(), labels_.size() * sizeof(int32_t));
  digest.Add(sizes_.data(), sizes_.size() * sizeof(int64_t));
}

Result<Listing> ListImages(const std::string& path, const std::string& eval_path) {
  std::error_code ignored;
  std::string train = path, eval = eval_path;
  if (fs::is_directory(fs::path(path) / "train", ignored)) {
    train = path + "/train";
    for (const char* name : {"/val", "/test"}) {
      if (eval.empty() && fs::is_directory(path + name, ignored)) eval = path + name;
    }
  }
  Listing listing{.classes = {}, .train = {}, .held_out = {}, .has_held_out = !eval.empty()};
  ENGINE_ASSIGN_OR_RETURN(const Part to_train, Find(train));
  std::set<std::string> classes;
  for (const Found& image : to_train.found) classes.insert(image.class_name);
  listing.classes.assign(classes.begin(), classes.end());
  ENGINE_RETURN_IF_ERROR(AddTo(&listing.train, to_train, listing.classes));
  if (eval.empty()) return listing;
  ENGINE_ASSIGN_OR_RETURN(const Part held_out, Find(eval));
  ENGINE_RETURN_IF_ERROR(AddTo(&listing.held_out, held_out, listing.classes));
  return listing;
}

}  // namespace engine::images
