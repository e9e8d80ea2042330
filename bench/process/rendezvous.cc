#include "bench/process/rendezvous.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

namespace engine::bench {
namespace {

// In front of every answer, or alone in place of one.
constexpr std::string_view kGoOn = "go on:";
constexpr std::string_view kStop = "stop";

}  // namespace

Result<std::string> Rendezvous::Meet(
    const std::string& text,
    const std::function<std::string(const std::vector<std::string>&)>& answer) {
  const std::string name = "bench/" + std::to_string(rendezvous_++) + "/";
  if (rank_.info.rank != 0) {
    ENGINE_RETURN_IF_ERROR(rank_.store.Set(name + std::to_string(rank_.info.rank), text));
  } else {
    std::vector<std::string> texts = {text};
    for (int rank = 1; rank < rank_.info.world_size; ++rank) {
      ENGINE_ASSIGN_OR_RETURN(std::string of_rank,
                              rank_.store.Get(name + std::to_string(rank), timeout_ms_));
      texts.push_back(std::move(of_rank));
    }
    const int signal = rank_.stop_requested.load();
    ENGINE_RETURN_IF_ERROR(rank_.store.Set(
        name + "answer", signal != 0 ? std::string(kStop) : std::string(kGoOn) + answer(texts)));
  }
  ENGINE_ASSIGN_OR_RETURN(const std::string answered,
                          rank_.store.Get(name + "answer", timeout_ms_));
  if (!answered.starts_with(kGoOn)) {
    return Status::Error(StatusCode::kInterrupted, "stopped on request");
  }
  return answered.substr(kGoOn.size());
}

Status Rendezvous::Wait() {
  return Meet("", [](const std::vector<std::string>&) { return std::string(); }).status();
}

Result<std::vector<double>> Rendezvous::Largest(const std::vector<double>& values) {
  std::vector<double> largest(values.size()), of_rank(values.size());
  const auto add = [&](const std::vector<std::string>& of_ranks) {
    for (const std::string& bytes : of_ranks) {
      std::memcpy(of_rank.data(), bytes.data(),
                  std::min(bytes.size(), of_rank.size() * sizeof(double)));
      for (size_t i = 0; i < largest.size(); ++i) largest[i] = std::max(largest[i], of_rank[i]);
    }
    return std::string();
  };
  const std::string bytes(reinterpret_cast<const char*>(values.data()),
                          values.size() * sizeof(double));
  ENGINE_RETURN_IF_ERROR(Meet(bytes, add).status());
  return largest;
}

}  // namespace engine::bench
