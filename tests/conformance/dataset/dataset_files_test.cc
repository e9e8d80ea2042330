// Files with made-up content for those datasets of this repository that read some. What judges them
// comes after it.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/temp_folder.h"
#include "tests/unit/data/cifar10_bytes.h"
#include "tests/unit/data/idx_bytes.h"
#include "tests/unit/data/image_bytes.h"
#include "tests/unit/data/npy_bytes.h"
#include "tests/unit/data/token_bytes.h"

namespace engine::test {
namespace {

TEST(DatasetFiles, AreWritten) {
  TempFolder folder;
  folder.Write("text", std::string(999, 'x') + "yz");
  folder.Write("tokens.bin", TokenBytes(Counting(7, 900)));
  folder.Write("images", IdxImages(25));
  folder.Write("labels", IdxLabels(25));
  WriteCifar(folder);
  folder.Write("alone.bin", TokenBytes(Counting(7, 900)).substr(1024));
  std::string csv = "x,place,w,kind\n";
  std::vector<float> numbers;
  for (int i = 0; i < 150; ++i) {
    csv += std::to_string(i * i) + (i % 3 ? ",\"in, out\"," : ",up,") + std::to_string(i % 2) +
           (i % 5 ? ",cat\n" : ",dog\n");
    for (int j = 0; j < 3; ++j)
      numbers.push_back(static_cast<float>(i) / 8 - static_cast<float>(j));
    const auto grey = static_cast<uint8_t>(i);
    const std::string name =
        "images_of_classes/" + std::string(i % 2 ? "odd/" : "even/") + std::to_string(i);
    if (i < 20)
      folder.Write(name + ".png", PngBytes(9 + i, 12, PNG_COLOR_TYPE_GRAY, 8,
                                           std::vector<uint8_t>((9u + grey) * 12, grey)));
    if (i < 20) folder.Write(name + ".jpg", JpegBytes(7, 9 + i, {grey, 9, 99}));
  }
  folder.Write("table.csv", csv);
  folder.Write("table.npy", NpyBytes("<f4", "(150, 3)", numbers));
  using std::filesystem::copy_options;
  std::filesystem::copy(folder.path(), DATASET_FILES,
                        copy_options::recursive | copy_options::overwrite_existing);
}

}  // namespace
}  // namespace engine::test
