#include <png.h>

#include <bit>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <span>

#include "decode.h"

namespace engine::images {
namespace {

struct Source {
  const uint8_t* next;
  size_t left;
};

// libpng's own functions that end with a longjmp to png_jmpbuf.
void Read(png_structp png, png_bytep out, size_t count) {
  auto* const source = static_cast<Source*>(png_get_io_ptr(png));
  if (source->left < count) png_error(png, "the file ends too early");
  std::memcpy(out, source->next, count);
  source->next += count;
  source->left -= count;
}

[[noreturn]] void Fail(png_structp png, png_const_charp message) {
  std::snprintf(static_cast<char*>(png_get_error_ptr(png)), kMessageBytes, "%s", message);
  png_longjmp(png, 1);
}

// Warnings are of chunks that are not looked at.
void Ignore(png_structp, png_const_charp) {}

// Grey or colours, of 8 or 16 bits, without transparency.
void Transform(png_structp png, png_infop info, int64_t channels) {
  const int color = png_get_color_type(png, info);
  png_set_expand(png);  // palettes, fewer than 8 bits
  png_set_strip_alpha(png);
  const bool is_color = (color & PNG_COLOR_MASK_COLOR) != 0;
  if (channels == 3 && !is_color) png_set_gray_to_rgb(png);
  if (channels == 1 && is_color) png_set_rgb_to_gray(png, PNG_ERROR_ACTION_NONE, 0.299, 0.587);
  // Values of 16 bits are big-endian in the file.
  if (std::endian::native == std::endian::little) png_set_swap(png);
}

}  // namespace

// `png` and `info` are set before setjmp and never changed after it, so they are good after a
// longjmp; `good` is volatile for the same reason (C11 7.13.2.1).
bool DecodePng(std::span<const uint8_t> file, int64_t channels, Image* image, char* message) {
  png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, message, Fail, Ignore);
  if (png == nullptr) return false;
  png_infop info = png_create_info_struct(png);
  Source source{file.data(), file.size()};
  volatile bool good = false;
  if (info != nullptr && setjmp(png_jmpbuf(png)) == 0) {
    png_set_read_fn(png, &source, Read);
    png_set_user_limits(png, 1 << 20, 1 << 20);
    png_read_info(png, info);
    Transform(png, info, channels);
    const int passes = png_set_interlace_handling(png);
    const bool wide = png_get_bit_depth(png, info) == 16;
    const png_uint_32 rows = png_get_image_height(png, info);
    if (Prepare(rows, png_get_image_width(png, info), channels, wide, image, message)) {
      png_read_update_info(png, info);
      const size_t row_bytes = image->bytes.size() / rows;
      if (png_get_rowbytes(png, info) != row_bytes) png_error(png, "an unknown kind of pixels");
      // An interlaced image comes in seven passes, each of which fills in more pixels.
      for (int pass = 0; pass < passes; ++pass) {
        for (png_uint_32 row = 0; row < rows; ++row) {
          png_read_row(png, image->bytes.data() + row * row_bytes, nullptr);
        }
      }
      png_read_end(png, nullptr);
      good = true;
    }
  }
  png_destroy_read_struct(&png, &info, nullptr);
  return good;
}

}  // namespace engine::images
