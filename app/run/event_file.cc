#include "app/run/event_file.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <vector>

#include "app/run/event.pb.h"

namespace engine::run {
namespace {

double SecondsSince1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Castagnoli's polynomial, bit by bit: records are short.
uint32_t MaskedCrc(std::string_view bytes) {
  constexpr uint32_t kReversedPolynomial = 0x82f63b78;
  uint32_t crc = ~0u;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? kReversedPolynomial : 0);
  }
  return std::rotr(~crc, 15) + 0xa282ead8u;
}

template <typename Number>
std::string LittleEndian(Number number) {
  std::string bytes;
  for (size_t i = 0; i < sizeof number; ++i) bytes += static_cast<char>(number >> 8 * i);
  return bytes;
}

std::string Serialized(int64_t step, const std::vector<train::Metric>& scalars) {
  proto::Event event;
  event.set_wall_time(SecondsSince1970());
  event.set_step(step);
  for (const auto& [tag, number] : scalars) {
    proto::Summary::Value* const value = event.mutable_summary()->add_value();
    value->set_tag(tag);
    value->set_simple_value(static_cast<float>(number));
  }
  return event.SerializeAsString();
}

}  // namespace

EventFile::~EventFile() {
  if (file_ != nullptr) std::fclose(file_);
}

bool EventFile::Open() {
  char host[65] = "localhost";
  (void)gethostname(host, sizeof host - 1);
  // Two runs that begin in one second are two processes.
  path_ += "/events.out.tfevents." + std::to_string(static_cast<int64_t>(SecondsSince1970())) +
           "." + host + "." + std::to_string(getpid());
  file_ = std::fopen(path_.c_str(), "wxe");
  proto::Event first;
  first.set_wall_time(SecondsSince1970());
  first.set_file_version("brain.Event:2");
  return file_ != nullptr && WriteRecord(first.SerializeAsString());
}

bool EventFile::WriteRecord(const std::string& bytes) {
  const std::string length = LittleEndian(uint64_t{bytes.size()});
  const std::string record =
      length + LittleEndian(MaskedCrc(length)) + bytes + LittleEndian(MaskedCrc(bytes));
  const size_t written = std::fwrite(record.data(), 1, record.size(), file_);
  return written == record.size() && std::fflush(file_) == 0;
}

Status EventFile::WriteEvent(const std::string& bytes) {
  const std::lock_guard lock(mutex_);
  if ((file_ != nullptr || Open()) && WriteRecord(bytes)) return {};
  return Status::Error(StatusCode::kStorage, "cannot write events to %s: %s", path_.c_str(),
                       strerror(errno));
}

Status EventFile::Write(const train::StepReport& report) {
  const double seconds = std::max(report.seconds, 1e-9);
  std::vector<train::Metric> scalars = {
      {"loss", report.loss},
      {"accuracy", report.accuracy},
      {"learning_rate", report.learning_rate},
      {"samples_per_second", static_cast<double>(report.samples) / seconds}};
  if (report.communication_seconds) {
    scalars.push_back({"communication_share", *report.communication_seconds / seconds});
  }
  return WriteEvent(Serialized(report.step, scalars));
}

Status EventFile::Write(const train::EvaluationReport& report) {
  std::vector<train::Metric> scalars = {{"held_out/loss", report.loss}};
  for (const auto& [name, value] : report.metrics) scalars.push_back({"held_out/" + name, value});
  return WriteEvent(Serialized(report.step, scalars));
}

Status EventFile::WritePluginMetric(int64_t step, int32_t /*rank*/, std::string_view name,
                                    double value) {
  return WriteEvent(Serialized(step, {{"plugins/" + std::string(name), value}}));
}

}  // namespace engine::run
