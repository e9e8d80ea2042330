#include <csetjmp>
#include <cstddef>
#include <cstdio>
// It uses FILE and size_t without including them.
#include <jerror.h>
#include <jpeglib.h>

#include <span>

#include "decode.h"

namespace engine::images {
namespace {

struct ErrorManager {
  jpeg_error_mgr base;  // the library knows this part
  jmp_buf jump;
  char* message;
};

// In place of the library's own, which ends the process.
[[noreturn]] void Fail(j_common_ptr jpeg) {
  auto* const errors = reinterpret_cast<ErrorManager*>(jpeg->err);
  errors->base.format_message(jpeg, errors->message);
  std::longjmp(errors->jump, 1);
}

// Warnings are damages that the library fills with grey, but for bytes between two markers, which
// some cameras write.
void Warn(j_common_ptr jpeg, int level) {
  if (level < 0 && jpeg->err->msg_code != JWRN_EXTRANEOUS_DATA) Fail(jpeg);
}

static_assert(kMessageBytes >= JMSG_LENGTH_MAX);

// Of four inks (Adobe writes them inverted) as three colours or as grey, in place of a row.
void FromInks(const uint8_t* inks, int64_t columns, int64_t channels, bool inverted, uint8_t* out) {
  for (int64_t i = 0; i < columns; ++i, inks += 4, out += channels) {
    int color[3];
    for (int c = 0; c < 3; ++c) {
      color[c] = (inverted ? inks[c] : 255 - inks[c]) * (inverted ? inks[3] : 255 - inks[3]) / 255;
    }
    for (int c = 0; c < 3 && channels == 3; ++c) out[c] = static_cast<uint8_t>(color[c]);
    if (channels == 1) {
      out[0] =
          static_cast<uint8_t>((299 * color[0] + 587 * color[1] + 114 * color[2] + 500) / 1000);
    }
  }
}

}  // namespace

bool DecodeJpeg(std::span<const uint8_t> file, int64_t channels, Image* image, char* message) {
  jpeg_decompress_struct jpeg{};
  ErrorManager errors{};
  errors.message = message;
  jpeg.err = jpeg_std_error(&errors.base);
  errors.base.error_exit = Fail;
  errors.base.emit_message = Warn;
  volatile bool good = false;
  if (setjmp(errors.jump) == 0) {
    jpeg_create_decompress(&jpeg);
    jpeg_mem_src(&jpeg, file.data(), file.size());
    jpeg_read_header(&jpeg, TRUE);
    // The library turns YCCK into CMYK, and does not go further.
    const bool inks = jpeg.num_components == 4;
    jpeg.out_color_space = inks ? JCS_CMYK : channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    if (Prepare(jpeg.image_height, jpeg.image_width, channels, false, image, message)) {
      jpeg_start_decompress(&jpeg);
      const size_t row_bytes = static_cast<size_t>(image->columns * channels);
      // Of the library's own memory, which jpeg_destroy_decompress frees.
      JSAMPARRAY row = (*jpeg.mem->alloc_sarray)(reinterpret_cast<j_common_ptr>(&jpeg), JPOOL_IMAGE,
                                                 jpeg.output_width * 4, 1);
      while (jpeg.output_scanline < jpeg.output_height) {
        uint8_t* const out = image->bytes.data() + jpeg.output_scanline * row_bytes;
        JSAMPROW into = inks ? row[0] : out;
        jpeg_read_scanlines(&jpeg, &into, 1);
        if (inks) FromInks(into, image->columns, channels, jpeg.saw_Adobe_marker != 0, out);
      }
      jpeg_finish_decompress(&jpeg);
      good = true;
    }
  }
  jpeg_destroy_decompress(&jpeg);
  return good;
}

}  // namespace engine::images
