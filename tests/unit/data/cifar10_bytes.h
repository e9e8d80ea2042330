// Small files in the format of CIFAR-10's binary version, with made-up content.
#pragma once

#include <string>

#include "tests/support/temp_folder.h"

namespace engine::test {

// The label of image n is n % 10.
inline char CifarLabel(int image) {
  return static_cast<char>(image % 10);
}

// Pixel (channel, row, column) of image n, 0 .. 255.
inline int CifarPixel(int image, int channel, int row, int column) {
  return (7 * image + 50 * channel + 3 * row + 5 * column) % 256;
}

// Images first .. first + count - 1.
inline std::string CifarRecords(int first, int count) {
  std::string bytes;
  for (int image = first; image < first + count; ++image) {
    bytes += CifarLabel(image);
    for (int channel = 0; channel < 3; ++channel) {
      for (int i = 0; i < 32 * 32; ++i) {
        bytes += static_cast<char>(CifarPixel(image, channel, i / 32, i % 32));
      }
    }
  }
  return bytes;
}

// Batch b of 1 .. 5 has b + 1 images, 20 in all; the test batch has the 4 that come next.
inline void WriteCifar(const TempFolder& folder) {
  int next = 0;
  for (int batch = 1; batch <= 5; next += ++batch) {
    folder.Write("data_batch_" + std::to_string(batch) + ".bin", CifarRecords(next, batch + 1));
  }
  folder.Write("test_batch.bin", CifarRecords(next, 4));
}

}  // namespace engine::test
