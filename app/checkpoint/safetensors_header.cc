#include "app/checkpoint/safetensors_header.h"

#include <algorithm>
#include <cinttypes>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

namespace engine {
namespace {

constexpr char kMetadataName[] = "__metadata__";

constexpr std::pair<const char*, DType> kDTypes[] = {{"F32", DType::kFloat32},
                                                     {"I32", DType::kInt32},
                                                     {"U8", DType::kUint8},
                                                     {"BF16", DType::kBFloat16},
                                                     {"F16", DType::kFloat16}};

const char* FormatName(DType dtype) {
  for (const auto& [name, value] : kDTypes) {
    if (value == dtype) return name;
  }
  return "";
}

constexpr StatusCode kBad = StatusCode::kBadData;

// A string of the file as part of a message: short, and without what a terminal would obey.
std::string Printable(const std::string& text) {
  std::string printable = text.substr(0, 80);
  for (char& c : printable) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return printable;
}

// A reader that is fed one JSON event at a time. It refuses at the first event that the format does
// not allow, so hostile nesting, sizes and repeated keys cost nothing.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(uint64_t data_bytes) : data_bytes_(data_bytes) {}

  Status status;
  SafetensorsHeader header;

  bool null() override { return Refuse("null"); }
  bool boolean(bool) override { return Refuse("true or false"); }
  bool number_integer(number_integer_t) override { return Refuse("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return Refuse("a number that is no integer of 64 bits");
  }
  bool binary(binary_t&) override { return Refuse("binary"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::kShape) return AddExtent(value);
    if (place_ != Place::kOffsets) return Refuse("a number");
    if (offset_count_ == 2) {
      return Fail(
          Status::Error(kBad, "tensor '%s' has more than two data_offsets", Name().c_str()));
    }
    (offset_count_++ == 0 ? entry_.begin : entry_.end) = value;
    return true;
  }

  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) return AddMetadata(value);
    if (place_ != Place::kTensor || key_ != "dtype") return Refuse("a string");
    for (const auto& [format_name, dtype] : kDTypes) {
      if (value != format_name) continue;
      entry_.dtype = dtype;
      return true;
    }
    return Fail(
        Status::Error(kBad, "tensor '%s' has the dtype '%s'; known are F32, I32, U8, BF16 and F16",
                      Name().c_str(), Printable(value).c_str()));
  }

  bool start_object(size_t) override {
    if (place_ == Place::kStart) {
      place_ = Place::kRoot;
    } else if (place_ == Place::kRoot) {
      place_ = entry_.name == kMetadataName ? Place::kMetadata : Place::kTensor;
    } else {
      return Refuse("an object");
    }
    return true;
  }

  bool key(string_t& value) override {
    if (place_ == Place::kRoot) {
      if (!names_.insert(value).second) {
        return Fail(Status::Error(kBad, "'%s' is there twice", Printable(value).c_str()));
      }
      entry_ = {};
      entry_.name = value;
      offset_count_ = 0;
      tensor_keys_.clear();
      return true;
    }
    key_ = value;
    if (place_ == Place::kMetadata) return true;
    if (value != "dtype" && value != "shape" && value != "data_offsets") {
      return Fail(Status::Error(kBad, "tensor '%s' has the unknown key '%s'", Name().c_str(),
                                Printable(value).c_str()));
    }
    if (!tensor_keys_.insert(value).second) {
      return Fail(Status::Error(kBad, "tensor '%s' has its key '%s' twice", Name().c_str(),
                                Printable(value).c_str()));
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kTensor && !AddTensor()) return false;
    place_ = place_ == Place::kRoot ? Place::kEnd : Place::kRoot;
    return true;
  }

  bool start_array(size_t) override {
    if (place_ != Place::kTensor || key_ == "dtype") return Refuse("a list");
    place_ = key_ == "shape" ? Place::kShape : Place::kOffsets;
    return true;
  }

  bool end_array() override {
    place_ = Place::kTensor;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) override {
    return Fail(Status::Error(kBad, "the header is not valid JSON at its byte %zu", position));
  }

 private:
  enum class Place { kStart, kRoot, kMetadata, kTensor, kShape, kOffsets, kEnd };

  std::string Name() const { return Printable(entry_.name); }

  bool Fail(Status why) {
    status = std::move(why);
    return false;
  }

  bool Refuse(const char* what) {
    if (place_ == Place::kStart) {
      return Fail(Status::Error(kBad, "the header is %s, not an object", what));
    }
    if (place_ == Place::kMetadata) {
      return Fail(Status::Error(kBad, "the metadata '%s' is %s, not a string",
                                Printable(key_).c_str(), what));
    }
    return Fail(
        Status::Error(kBad, "the header has %s where '%s' is described", what, Name().c_str()));
  }

  bool AddMetadata(const std::string& value) {
    if (header.metadata.emplace(key_, value).second) return true;
    return Fail(Status::Error(kBad, "the metadata '%s' is there twice", Printable(key_).c_str()));
  }

  bool AddExtent(uint64_t extent) {
    if (entry_.shape.ndim == kMaxDims) {
      return Fail(
          Status::Error(kBad, "tensor '%s' has more than %d dimensions", Name().c_str(), kMaxDims));
    }
    if (extent > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Fail(
          Status::Error(kBad, "tensor '%s' has an extent that is too large", Name().c_str()));
    }
    entry_.shape.dims[entry_.shape.ndim++] = static_cast<int64_t>(extent);
    return true;
  }

  bool AddTensor() {
    if (tensor_keys_.size() != 3 || offset_count_ != 2) {
      return Fail(
          Status::Error(kBad, "tensor '%s' lacks dtype, shape or data_offsets", Name().c_str()));
    }
    const Result<uint64_t> bytes = CheckedBytes(entry_.shape, entry_.dtype);
    if (!bytes.ok()) return Fail(bytes.status().WithContext("tensor '%s'", Name().c_str()));
    if (entry_.begin > entry_.end || entry_.end > data_bytes_) {
      return Fail(Status::Error(kBad,
                                "tensor '%s' has the data_offsets [%" PRIu64 ", %" PRIu64
                                "], outside of the %" PRIu64 " bytes of "
                                "data",
                                Name().c_str(), entry_.begin, entry_.end, data_bytes_));
    }
    if (entry_.end - entry_.begin != *bytes) {
      return Fail(
          Status::Error(kBad, "tensor '%s' has %" PRIu64 " bytes, but its shape needs %" PRIu64 "",
                        Name().c_str(), entry_.end - entry_.begin, *bytes));
    }
    header.tensors.push_back(std::move(entry_));
    return true;
  }

  const uint64_t data_bytes_;
  Place place_ = Place::kStart;
  std::set<std::string> names_;
  std::string key_;  // within a tensor or the metadata
  TensorEntry entry_;
  std::set<std::string> tensor_keys_;
  int offset_count_ = 0;
};

// Sorts the tensors by position and checks that they cover the data.
Status CheckCoverage(std::vector<TensorEntry>& tensors, uint64_t data_bytes) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  uint64_t covered = 0;
  for (const TensorEntry& tensor : tensors) {
    if (tensor.begin != covered) {
      return Status::Error(kBad,
                           tensor.begin < covered
                               ? "tensor '%s' overlaps the one before it"
                               : "there is a hole in the data before tensor '%s'",
                           Printable(tensor.name).c_str());
    }
    covered = tensor.end;
  }
  if (covered == data_bytes) return {};
  return Status::Error(kBad, "the tensors cover %" PRIu64 " of %" PRIu64 " bytes of data", covered,
                       data_bytes);
}

}  // namespace

Result<uint64_t> CheckedBytes(const Shape& shape, DType dtype) {
  int64_t bytes = static_cast<int64_t>(SizeOf(dtype));
  bool empty = false;
  for (int32_t i = 0; i < shape.ndim; ++i) {
    if (shape[i] < 0) return Status::Error(kBad, "a negative extent");
    empty = empty || shape[i] == 0;
    // Empty tensors too: a product of some of their extents must not overflow either.
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(shape[i], 1), &bytes)) {
      return Status::Error(kBad, "the product of its extents is too large");
    }
  }
  return empty ? 0 : static_cast<uint64_t>(bytes);
}

Result<SafetensorsHeader> ParseHeader(std::string_view text, uint64_t data_bytes) {
  if (!text.starts_with('{')) {
    return Status::Error(kBad, "the header does not begin with '{'");
  }
  // The JSON library takes NUL for the end of its input.
  if (const size_t nul = text.find('\0'); nul != text.npos) {
    return Status::Error(kBad, "the header is not valid JSON at its byte %zu", nul + 1);
  }
  HeaderReader reader(data_bytes);
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &reader)) return reader.status;
  ENGINE_RETURN_IF_ERROR(CheckCoverage(reader.header.tensors, data_bytes));
  return std::move(reader.header);
}

Result<std::string> FormatHeader(const SafetensorsHeader& header) {
  nlohmann::json root = nlohmann::json::object();
  if (!header.metadata.empty()) root[kMetadataName] = header.metadata;
  for (const TensorEntry& tensor : header.tensors) {
    nlohmann::json extents = nlohmann::json::array();
    for (int32_t i = 0; i < tensor.shape.ndim; ++i) extents.push_back(tensor.shape[i]);
    if (tensor.name == kMetadataName || root.contains(tensor.name)) {
      return Status::Error(StatusCode::kInvalidArgument,
                           "the tensor name '%s' is reserved or there twice",
                           Printable(tensor.name).c_str());
    }
    root[tensor.name] = {{"dtype", FormatName(tensor.dtype)},
                         {"shape", std::move(extents)},
                         {"data_offsets", {tensor.begin, tensor.end}}};
  }
  try {
    return root.dump();
  } catch (const nlohmann::json::exception&) {
    return Status::Error(StatusCode::kInvalidArgument,
                         "a tensor's name or a metadata string is not UTF-8");
  }
}

Result<std::string> DigestedHeader(SafetensorsHeader header) {
  header.metadata.erase(kDigestKey);
  return FormatHeader(header);
}

}  // namespace engine
