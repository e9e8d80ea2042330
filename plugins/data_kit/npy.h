// Arrays in NumPy's files (numpy.org/doc/stable/reference/generated/numpy.lib.format.html): .npy,
// and .npz, which is a ZIP file of them (PKWARE: APPNOTE.TXT).
//
//   npy    = "\x93NUMPY" major minor length header element{product of the shape}
//   length = uint16 if major is 1, else uint32: the bytes of the header
//   header = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }"   keys in any order
//
// Elements may be bool, (u)int8 to 64 and float16 to 64, of either byte order.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "data_kit/elements.h"
#include "engine/status.h"

namespace engine::data_kit {

bool IsNpy(std::span<const uint8_t> bytes);
bool IsNumpyFile(std::string_view path);  // by its name: .npy, .npz or .npz:ARRAY

// The array in `path`: "x.npy", or "d.npz:x", where "d.npz" means "d.npz:" + `array`. Files are
// mapped: what is not read is not in memory, but for a compressed array of a .npz, whose checksum is
// compared. All extents are above 0. kMissingInput; kBadData with the file and what is wrong; no
// element is looked at.
Result<NumberArray> OpenNpy(const std::string& path, const std::string& array);

// The header and elements of `bytes`, which `memory` keeps. kBadData.
Result<NumberArray> ParseNpy(std::string name, std::span<const uint8_t> bytes,
                             std::shared_ptr<const void> memory);

// What a member of a ZIP file holds; inflated where it is compressed. kBadData for a damaged file,
// one that has no such member or packs it in another way than deflate.
struct ZipMember {
  std::span<const uint8_t> content;
  std::shared_ptr<const void> memory;
};
Result<ZipMember> FindZipMember(const std::string& path, std::span<const uint8_t> file,
                                std::shared_ptr<const void> memory, const std::string& member);

}  // namespace engine::data_kit
