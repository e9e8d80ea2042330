#include "app/checkpoint/safetensors_header.h"

#include <algorithm>
#include <cinttypes>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

namespace engine::checkpoint {
namespace {

using Json = nlohmann::json;

constexpr char kMetadataName[] = "__metadata__";

constexpr std::pair<const char*, DType> kDTypes[] = {{"F32", DType::kFloat32},
                                                     {"I32", DType::kInt32},
                                                     {"U8", DType::kUint8},
                                                     {"BF16", DType::kBFloat16},
                                                     {"F16", DType::kFloat16}};

// The other types of the format, with the bytes of an element.
constexpr std::pair<const char*, size_t> kForeign[] = {
    {"F64", 8}, {"I64", 8}, {"U64", 8}, {"U32", 4}, {"I16", 2}, {"U16", 2}, {"I8", 1}, {"BOOL", 1}};

std::string FormatName(const TensorEntry& tensor) {
  if (!tensor.foreign.empty()) return tensor.foreign;
  return std::ranges::find(kDTypes, tensor.dtype, &std::pair<const char*, DType>::second)->first;
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

// Thrown out of the JSON parser, at the first thing that the format does not allow.
struct Refused {
  Status why;
};

template <typename... Values>
[[noreturn]] void Refuse(const char* format, Values... values) {
  throw Refused{Status::Error(kBad, format, values...)};
}

// Takes each tensor from the parser as it ends and lets the parser forget it. Nothing is nested
// deeper or longer than the format allows, so hostile nesting, sizes and repeated keys cost
// nothing.
class HeaderReader {
 public:
  HeaderReader(uint64_t data_bytes, ForeignTypes foreign)
      : data_bytes_(data_bytes), foreign_(foreign) {}

  SafetensorsHeader header;

  // `depth` is that of what is around: 0 outside of the header, 1 in it, 2 in a tensor or the
  // metadata, 3 in a list. Whether to keep `parsed`.
  bool On(int depth, Json::parse_event_t event, Json& parsed) {
    using Event = Json::parse_event_t;
    if (event == Event::key) OnKey(depth, parsed.get_ref<const std::string&>());
    if (event == Event::object_start && depth > 1) RefuseHere("an object");
    if (event == Event::array_start && depth != 2) RefuseHere("a list");
    if (event == Event::array_start) numbers_ = 0;
    if (event == Event::value && depth == 1) RefuseHere(parsed.type_name());
    if (event == Event::value && depth == 3 && ++numbers_ > kMaxDims) {
      Refuse("tensor '%s' has more than %d dimensions", Name().c_str(), kMaxDims);
    }
    if (event != Event::object_end || depth != 1) return true;
    name_ == kMetadataName ? AddMetadata(parsed) : AddTensor(parsed);
    return false;
  }

 private:
  std::string Name() const { return Printable(name_); }

  [[noreturn]] void RefuseHere(const char* what) const {
    Refuse("the header has %s where '%s' is described", what, Name().c_str());
  }

  void OnKey(int depth, const std::string& key) {
    if (depth == 1) {
      name_ = key;
      keys_.clear();
    } else if (name_ != kMetadataName && key != "dtype" && key != "shape" &&
               key != "data_offsets") {
      Refuse("tensor '%s' has the unknown key '%s'", Name().c_str(), Printable(key).c_str());
    }
    if ((depth == 1 ? names_ : keys_).insert(key).second) return;
    Refuse("'%s' is there twice", Printable(key).c_str());
  }

  void AddMetadata(const Json& metadata) {
    for (const auto& [key, value] : metadata.items()) {
      if (!value.is_string()) {
        Refuse("the metadata '%s' is %s, not a string", Printable(key).c_str(), value.type_name());
      }
      header.metadata[key] = value.get<std::string>();
    }
  }

  void AddTensor(const Json& json) {
    if (json.size() != 3) Refuse("tensor '%s' lacks dtype, shape or data_offsets", Name().c_str());
    TensorEntry entry{.name = name_};
    const Json& offsets = json.at("data_offsets");
    const size_t element_bytes = ReadType(json.at("dtype"), entry);
    for (const Json& extent : json.at("shape")) {
      if (!extent.is_number_unsigned() || extent > uint64_t{INT64_MAX}) {
        Refuse("tensor '%s' has %s where its shape has an integer of 63 bits", Name().c_str(),
               Printable(extent.dump()).c_str());
      }
      entry.shape.dims[entry.shape.ndim++] = extent.get<int64_t>();
    }
    if (offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
        !offsets[1].is_number_unsigned()) {
      Refuse("tensor '%s' has data_offsets that are not two positions", Name().c_str());
    }
    entry.begin = offsets[0];
    entry.end = offsets[1];
    CheckSize(entry, element_bytes);
    header.tensors.push_back(std::move(entry));
  }

  // Gives out the bytes of an element.
  size_t ReadType(const Json& dtype, TensorEntry& entry) const {
    for (const auto& [name, known] : kDTypes) {
      if (dtype != name) continue;
      entry.dtype = known;
      return SizeOf(known);
    }
    for (const auto& [name, element_bytes] : kForeign) {
      if (dtype != name || foreign_ == ForeignTypes::kRefuse) continue;
      entry.foreign = name;
      return element_bytes;
    }
    Refuse("tensor '%s' has the dtype %s; known are F32, I32, U8, BF16 and F16", Name().c_str(),
           Printable(dtype.dump()).c_str());
  }

  void CheckSize(const TensorEntry& entry, size_t element_bytes) const {
    const Result<uint64_t> bytes = CheckedBytes(entry.shape, element_bytes);
    if (!bytes.ok()) throw Refused{bytes.status().WithContext("tensor '%s'", Name().c_str())};
    if (entry.begin > entry.end || entry.end > data_bytes_) {
      Refuse("tensor '%s' has the data_offsets [%" PRIu64 ", %" PRIu64 "], outside of the %" PRIu64
             " bytes of data",
             Name().c_str(), entry.begin, entry.end, data_bytes_);
    }
    if (entry.end - entry.begin != *bytes) {
      Refuse("tensor '%s' has %" PRIu64 " bytes, but its shape needs %" PRIu64, Name().c_str(),
             entry.end - entry.begin, *bytes);
    }
  }

  const uint64_t data_bytes_;
  const ForeignTypes foreign_;
  std::set<std::string> names_;
  std::string name_;            // of the tensor, or that of the metadata
  std::set<std::string> keys_;  // in it
  int numbers_ = 0;             // in a list of it
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

Result<uint64_t> CheckedBytes(const Shape& shape, size_t element_bytes) {
  auto bytes = static_cast<int64_t>(element_bytes);
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

Result<SafetensorsHeader> ParseHeader(std::string_view text, uint64_t data_bytes,
                                      ForeignTypes foreign) {
  if (!text.starts_with('{')) return Status::Error(kBad, "the header does not begin with '{'");
  // The JSON library takes NUL for the end of its input.
  if (const size_t nul = text.find('\0'); nul != text.npos) {
    return Status::Error(kBad, "the header is not valid JSON at its byte %zu", nul + 1);
  }
  HeaderReader reader(data_bytes, foreign);
  const auto on = [&](int depth, Json::parse_event_t event, Json& parsed) {
    return reader.On(depth, event, parsed);
  };
  try {
    [[maybe_unused]] const Json kept = Json::parse(text.begin(), text.end(), on);
  } catch (const Refused& refused) {
    return refused.why;
  } catch (const Json::parse_error& error) {
    return Status::Error(kBad, "the header is not valid JSON at its byte %zu", error.byte);
  }
  ENGINE_RETURN_IF_ERROR(CheckCoverage(reader.header.tensors, data_bytes));
  return std::move(reader.header);
}

Result<std::string> FormatHeader(const SafetensorsHeader& header) {
  Json root = nlohmann::json::object();
  if (!header.metadata.empty()) root[kMetadataName] = header.metadata;
  for (const TensorEntry& tensor : header.tensors) {
    Json extents = Json::array();
    for (int32_t i = 0; i < tensor.shape.ndim; ++i) extents.push_back(tensor.shape[i]);
    if (tensor.name == kMetadataName || root.contains(tensor.name)) {
      return Status::Error(StatusCode::kInvalidArgument,
                           "the tensor name '%s' is reserved or there twice",
                           Printable(tensor.name).c_str());
    }
    root[tensor.name] = {{"dtype", FormatName(tensor)},
                         {"shape", std::move(extents)},
                         {"data_offsets", {tensor.begin, tensor.end}}};
  }
  try {
    return root.dump();
  } catch (const Json::exception&) {
    return Status::Error(StatusCode::kInvalidArgument,
                         "a tensor's name or a metadata string is not UTF-8");
  }
}

Result<std::string> DigestedHeader(SafetensorsHeader header) {
  header.metadata.erase(kDigestKey);
  return FormatHeader(header);
}

}  // namespace engine::checkpoint
