#include "blas_tune.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <sstream>

namespace engine::cuda_ops {
namespace {

constexpr std::string_view kHeader = "engine cuda_ops tune 1\n";
constexpr size_t kWords = std::size(cublasLtMatmulAlgo_t{}.data), kWordChars = 17;
constexpr std::string_view kEquals = " =";
constexpr size_t kValueChars = kEquals.size() + kWords * kWordChars;

constexpr int kRepetitions = 4;
// A later candidate must be this much faster than an earlier one: what differs by less differs from
// run to run.
constexpr float kClearlyFaster = 0.98f;
constexpr int64_t kMeasureTimeoutMs = 60'000;

// FNV-1a.
uint64_t Hash(std::string_view text) noexcept {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

std::string WordText(uint64_t word) noexcept {
  char text[kWordChars + 1];
  snprintf(text, sizeof text, " %016llx", static_cast<unsigned long long>(word));
  return text;
}

std::string LineOf(std::string_view key, const cublasLtMatmulAlgo_t& choice) noexcept {
  std::string line(key);
  line += kEquals;
  for (const uint64_t word : choice.data) line += WordText(word);
  return line + WordText(Hash(line)) + '\n';
}

// `line` is without its end.
bool IsWhole(std::string_view line) noexcept {
  if (line.size() < kValueChars + kWordChars) return false;
  const size_t size = line.size() - kWordChars;
  return line.substr(size) == WordText(Hash(line.substr(0, size)));
}

struct DestroyEvent {
  void operator()(cudaEvent_t event) const noexcept { static_cast<void>(cudaEventDestroy(event)); }
};
using OwnedEvent = std::unique_ptr<CUevent_st, DestroyEvent>;

}  // namespace

void TuneFile::Say(LogLevel level, const char* what) noexcept {
  if (host_ != nullptr) host_->Log(level, "cuda_ops.tune_file '" + path_ + "' " + what);
}

// Reads the file each time: another rank may have appended since, and this happens once a shape.
bool TuneFile::Find(std::string_view key, cublasLtMatmulAlgo_t* out) noexcept {
  std::ostringstream content;
  content << std::ifstream(path_, std::ios::binary).rdbuf();
  const std::string text = content.str();
  prefix_ = text.empty() ? kHeader : text.back() == '\n' ? "" : "\n";
  if (!text.empty() && !text.starts_with(kHeader)) {
    Say(LogLevel::kWarning,
        "is another file, or of another version: it is left alone, and choices are not kept");
    path_.clear();
    return false;
  }
  for (size_t begin = kHeader.size(); begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line(text.data() + begin, end - begin);
    begin = end + 1;
    if (line == kHeader.substr(0, kHeader.size() - 1)) continue;
    if (!IsWhole(line)) {
      if (!std::exchange(said_damaged_, true)) {
        Say(LogLevel::kWarning, "has damaged lines, which are skipped");
      }
      continue;
    }
    const size_t key_size = line.size() - kValueChars - kWordChars;
    if (line.substr(0, key_size) != key) continue;
    const char* word = line.data() + key_size + kEquals.size() + 1;
    for (uint64_t& data : out->data) {
      std::from_chars(word, word + kWordChars - 1, data, 16);
      word += kWordChars;
    }
    return true;
  }
  return false;
}

void TuneFile::Keep(std::string_view key, cublasLtMatmulAlgo_t* choice) noexcept {
  if (path_.empty()) return;
  if (!std::exchange(said_measuring_, true)) {
    Say(LogLevel::kInfo, "gets the fastest algorithms of matrix products, which are measured now");
  }
  // One write() with O_APPEND, so that lines of several ranks do not mix.
  const std::string line = prefix_ + LineOf(key, *choice);
  const int file = open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  const ssize_t written = file < 0 ? -1 : write(file, line.data(), line.size());
  if (file >= 0) static_cast<void>(close(file));
  if (written != static_cast<ssize_t>(line.size())) {
    Say(LogLevel::kWarning, "cannot be written: the next run measures again");
    path_.clear();
    return;
  }
  static_cast<void>(Find(key, choice));
}

Status FindFastest(CudaDevice& device, cudaStream_t stream, size_t count,
                   const std::function<Status(size_t)>& run, size_t* fastest) noexcept {
  std::array<OwnedEvent, 2> events;  // begin, end
  for (OwnedEvent& owned : events) {
    cudaEvent_t event = nullptr;
    CUDA_OPS_RETURN_IF_ERROR(cudaEventCreate(&event), "creating an event");
    owned.reset(event);
  }
  *fastest = 0;
  float least = std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < count; ++i) {
    if (!run(i).ok()) continue;  // the first run is not one to measure
    CUDA_OPS_RETURN_IF_ERROR(cudaEventRecord(events[0].get(), stream), "recording an event");
    Status status;
    for (int j = 0; j < kRepetitions && status.ok(); ++j) status = run(i);
    CUDA_OPS_RETURN_IF_ERROR(cudaEventRecord(events[1].get(), stream), "recording an event");
    ENGINE_RETURN_IF_ERROR(device.WaitFor(events[1].get(), kMeasureTimeoutMs));
    float milliseconds = 0;
    CUDA_OPS_RETURN_IF_ERROR(cudaEventElapsedTime(&milliseconds, events[0].get(), events[1].get()),
                             "measuring a matrix product");
    if (!status.ok() || milliseconds >= least * kClearlyFaster) continue;
    least = milliseconds;
    *fastest = i;
  }
  return {};
}

}  // namespace engine::cuda_ops
