// Any bytes in place of what a file, a flag or a peer says: each parser refuses them or takes them, and
// neither crashes nor reads outside of them.
//
//   input = target content     target: one byte, the index in kTargets (modulo their number)
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "app/checkpoint/checkpoint.h"
#include "app/checkpoint/safetensors_header.h"
#include "app/config/config.h"
#include "app/plugins/descriptor.h"
#include "app/plugins/elf_reader.h"
#include "data_kit/csv.h"
#include "data_kit/npy.h"
#include "plugins/cifar10/cifar10.cc"  // NOLINT(bugprone-suspicious-include): its reader is inside
#include "plugins/images/image.h"
#include "plugins/mnist/idx.h"
#include "plugins/tcp_kit/handshake.h"
#include "plugins/tokens/token_file.h"
#include "tools/trace/trace_format.h"

namespace engine {
namespace {

// A file without a name that holds `content`.
class File {
 public:
  explicit File(std::string_view content) : fd_(memfd_create("input", MFD_CLOEXEC)) {
    fchmod(fd_, 0600);
    ENGINE_CHECK(write(fd_, content.data(), content.size()) ==
                 static_cast<ssize_t>(content.size()));
  }
  ~File() { close(fd_); }
  File(const File&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  const int fd_;
};

// The symbols of a library, each taken for the descriptor of a plugin.
void ReadLibrary(std::string_view content) {
  const auto elf = plugins::ElfFile::Open(File(content).path());
  if (!elf.ok()) return;
  const auto symbols = elf->ExportedObjects("");
  if (!symbols.ok()) return;
  for (const plugins::ElfSymbol& symbol : *symbols) {
    const auto bytes = elf->Content(symbol);
    plugins::PluginFile entry;
    if (bytes.ok()) (void)plugins::DecodeDescriptor(*bytes, &entry);
  }
}

std::span<const uint8_t> BytesOf(std::string_view content) {
  return {reinterpret_cast<const uint8_t*>(content.data()), content.size()};
}

void ReadNumpy(std::string_view content) {
  const auto check = [](const data_kit::NumberArray& array) {
    std::vector<double> row(static_cast<size_t>(array.row_count()));
    array.Read(array.rows() - 1, 0, array.row_count(), row.data());
  };
  const auto array = data_kit::ParseNpy("input", BytesOf(content), nullptr);
  if (array.ok()) check(*array);
  const auto member = data_kit::FindZipMember("input", BytesOf(content), nullptr, "x.npy");
  if (!member.ok()) return;
  const auto packed = data_kit::ParseNpy("input", member->content, member->memory);
  if (packed.ok()) check(*packed);
}

// Fields lie in the file, or are shorter.
void ReadCsv(std::string_view content) {
  const auto file = data_kit::CsvFile::Open(File(content).path(), ',');
  data_kit::CsvRecord record;
  for (int64_t i = 0; file.ok() && i < file->records(); ++i) {
    if (!file->Split(i, &record).ok()) continue;
    size_t bytes = 0;
    for (const std::string_view field : record.fields()) {
      bytes += field.size();
      (void)data_kit::ParseNumber(field);
    }
    ENGINE_CHECK(bytes <= content.size());
  }
}

using Text = std::string_view;
constexpr void (*kTargets[])(Text) = {
    [](Text text) {
      (void)config::Config::Load({.text = std::string(text), .origin = "input", .is_data = true});
    },
    [](Text flag) {
      (void)config::Config::Load({.origin = "input", .overrides = {std::string(flag)}});
    },
    [](Text content) { (void)checkpoint::OpenCheckpoint(File(content).path()); },
    [](Text text) {
      const auto header = checkpoint::ParseHeader(text, 1 << 20);
      if (header.ok()) ENGINE_CHECK(checkpoint::FormatHeader(*header).ok());
    },
    [](Text content) { (void)trace::ReadTrace(File(content).path()); },
    [](Text text) { (void)trace::ParseTimeline(text); },
    [](Text content) {
      const auto file = tokens::OpenTokens(File(content).path(), tokens::Format::kGuess);
      std::vector<int32_t> read(file.ok() ? static_cast<size_t>(file->rows()) : 0);
      if (file.ok()) (void)tokens::ReadTokens(*file, 0, file->rows(), 50257, read.data());
    },
    [](Text content) { (void)mnist::ReadIdx(File(content).path(), 1, 4); },  // plain or gzip
    [](Text content) {
      const auto mapped = kit::MappedFile::Open(File(content).path());
      if (mapped.ok()) {
        (void)cifar10::CheckRecords(cifar10::SetOf("cifar100_fine"), "input", *mapped);
      }
    },
    ReadNumpy,
    ReadCsv,
    [](Text content) {
      for (const int64_t channels : {1, 3}) {
        (void)images::DecodeImage("input", BytesOf(content), channels);
      }
    },
    ReadLibrary,
    [](Text content) {
      tcp::Hello hello;
      std::memcpy(&hello, content.data(), std::min(content.size(), sizeof hello));
      const auto key = tcp::Key::Of(std::string(content), content);
      if (key.ok()) ENGINE_CHECK(!key->Proves(hello));
    }};

}  // namespace
}  // namespace engine

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view content(reinterpret_cast<const char*>(data + 1), size - 1);
  engine::kTargets[data[0] % std::size(engine::kTargets)](content);
  return 0;
}
