#include "data_kit/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/expect_status.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/data/idx_bytes.h"
#include "tests/unit/data/npy_bytes.h"

namespace engine {
namespace {

using data_kit::NumberArray;
using data_kit::OpenNpy;
using test::NpyBytes;
using test::TempFolder;
using test::ZipBytes;

std::vector<double> Row(const NumberArray& array, int64_t row) {
  std::vector<double> values(static_cast<size_t>(array.row_count()));
  array.Read(row, 0, array.row_count(), values.data());
  return values;
}

template <typename T>
void ExpectRead(const std::string& type, const std::vector<T>& elements,
                const std::vector<double>& values) {
  TempFolder folder;
  const auto array =
      ValueOf(OpenNpy(folder.Write("x.npy", NpyBytes(type, "(1, 2)", elements)), ""));
  EXPECT_EQ(Row(array, 0), values) << type;
}

TEST(Npy, ReadsEveryTypeOfElement) {
  ExpectRead<uint8_t>("|b1", {1, 0}, {1, 0});
  ExpectRead<int8_t>("|i1", {-3, 4}, {-3, 4});
  ExpectRead<uint16_t>("<u2", {65535, 1}, {65535, 1});
  ExpectRead<uint16_t>(">u2", {0x0100, 0x0200}, {1, 2});
  ExpectRead<int64_t>("<i8", {-5, int64_t{1} << 40}, {-5, 0x1p40});
  ExpectRead<uint16_t>("<f2", {0x3e00, 0xc000}, {1.5, -2});
  ExpectRead<float>("<f4", {0.25f, -8}, {0.25, -8});
  ExpectRead<double>("<f8", {0.1, 1e300}, {0.1, 1e300});
}

TEST(Npy, ArraysInZipFilesAreFoundByName) {
  TempFolder folder;
  const std::string x = NpyBytes<float>("<f4", "(2, 2)", {1, 2, 3, 4});
  const std::string y = NpyBytes<int64_t>("<i8", "(2,)", {7, 8});
  // Between the header of gzip and its trailer, which begins with the checksum, is raw deflate.
  const std::string gzip = test::Gzip(y), packed = gzip.substr(10, gzip.size() - 18);
  const std::string checksum = gzip.substr(gzip.size() - 8, 4);
  const std::string path = folder.Write(
      "d.npz", ZipBytes({{"x.npy", x, 0, x.size()}, {"y.npy", packed, 8, y.size(), checksum}}));
  EXPECT_THAT(Row(ValueOf(OpenNpy(path, "x")), 1), ElementsAre(3, 4));
  EXPECT_THAT(Row(ValueOf(OpenNpy(path + ":y", "x")), 1), ElementsAre(8));
  EXPECT_THAT(OpenNpy(path + ":z", "x"),
              FailsWith(StatusCode::kBadData, HasSubstr("d.npz:z: there is no such array; there "
                                                        "are x, y")));
  std::string whole = test::ReadWhole(path);
  std::string damaged = whole;
  damaged[damaged.rfind("PK\1\2") + 16] ^= 1;
  EXPECT_THAT(OpenNpy(folder.Write("bad.npz", damaged), "y"),
              FailsWith(StatusCode::kBadData, HasSubstr("damaged")))
      << "the checksum";
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THAT(OpenNpy(folder.Write("cut.npz", whole.substr(0, size)), "y"),
                FailsWith(StatusCode::kBadData, HasSubstr("cut.npz")));
  }
}

TEST(Npy, WhatIsWrongIsSaid) {
  TempFolder folder;
  const auto expect = [&](const std::string& content, const char* reason) {
    EXPECT_THAT(OpenNpy(folder.Write("x.npy", content), ""),
                FailsWith(StatusCode::kBadData, HasSubstr(reason)));
  };
  expect("label,pixel\n", "bad magic");
  expect(NpyBytes<float>("<f4", "(3, 2)", {1, 2, 3, 4, 5}), "more elements than the file has");
  expect(NpyBytes<float>("<f4", "(2, 2)", {1, 2, 3, 4}, "True"), "ascontiguousarray");
  expect(NpyBytes<float>("<c8", "(2,)", {1, 2, 3, 4}), "elements of type '<c8' are not read");
  expect(NpyBytes<float>("<U4", "(1,)", {1, 2, 3, 4}), "astype");
  expect(NpyBytes<float>("<f4", "()", {1}), "a single number");
  expect(NpyBytes<float>("<f4", "(0, 4)", {}), "no elements");
  expect(NpyBytes<float>("<f4", "(4, 0)", {}), "no elements");
  expect(NpyBytes<float>("<f4", "(-1,)", {1}), "a shape that cannot be");
  expect(NpyBytes<float>("<f4", "(4294967296, 4294967296, 4294967296)", {1}), "more elements");
  EXPECT_EQ(
      ValueOf(OpenNpy(folder.Write("x.npy", NpyBytes<float>("<f4", "(2,)", {1, 2}, "True")), ""))
          .rows(),
      2)
      << "one dimension has no order";
}

}  // namespace
}  // namespace engine
