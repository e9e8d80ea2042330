// Small pictures, encoded by the libraries that read them.
#pragma once

#include <gtest/gtest.h>
#include <png.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>
// It uses FILE and size_t without including them.
#include <jpeglib.h>

namespace engine::test {

// `color` is one of PNG_COLOR_TYPE_*; values of 16 bits are big-endian in `pixels`.
inline std::string PngBytes(int rows, int columns, int color, int bits,
                            std::vector<uint8_t> pixels) {
  std::string bytes;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  png_set_write_fn(
      png, &bytes,
      [](png_structp from, png_bytep data, size_t size) {
        static_cast<std::string*>(png_get_io_ptr(from))
            ->append(reinterpret_cast<const char*>(data), size);
      },
      nullptr);
  png_set_IHDR(png, info, static_cast<png_uint_32>(columns), static_cast<png_uint_32>(rows), bits,
               color, PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  png_color palette[2] = {{10, 20, 30}, {200, 100, 50}};
  if (color == PNG_COLOR_TYPE_PALETTE) png_set_PLTE(png, info, palette, 2);
  png_write_info(png, info);
  const size_t row_bytes = pixels.size() / static_cast<size_t>(rows);
  for (int row = 0; row < rows; ++row) {
    png_write_row(png, pixels.data() + static_cast<size_t>(row) * row_bytes);
  }
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);
  return bytes;
}

// Of one colour, which JPEG keeps but for rounding.
inline std::string JpegBytes(int rows, int columns, std::vector<uint8_t> color) {
  jpeg_compress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_compress(&jpeg);
  unsigned char* data = nullptr;
  unsigned long size = 0;  // NOLINT(google-runtime-int): the library's
  jpeg_mem_dest(&jpeg, &data, &size);
  jpeg.image_height = static_cast<JDIMENSION>(rows);
  jpeg.image_width = static_cast<JDIMENSION>(columns);
  jpeg.input_components = static_cast<int>(color.size());
  jpeg.in_color_space = color.size() == 1 ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_set_defaults(&jpeg);
  jpeg_start_compress(&jpeg, TRUE);
  std::vector<uint8_t> line;
  for (int i = 0; i < columns; ++i) line.insert(line.end(), color.begin(), color.end());
  for (JSAMPROW row = line.data(); jpeg.next_scanline < jpeg.image_height;) {
    jpeg_write_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_compress(&jpeg);
  jpeg_destroy_compress(&jpeg);
  std::string bytes(reinterpret_cast<const char*>(data), size);
  std::free(data);
  return bytes;
}

}  // namespace engine::test
