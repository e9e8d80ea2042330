// A digest of 64 bits travels in a sum of float32 as 8 numbers below 256. Rank 0 sends them 1 - N
// times, each of the other N - 1 ranks once, so a sum is zero where all ranks have sent the same.
// Partial sums are whole numbers below 2^24, so exact, for up to 65,000 ranks.
//
// Who differs is found by digests of each tensor, which every rank keeps until the sums are known:
// by then another step has begun to write. The 64 bits are a digest of those.
#include "app/run/replica_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "app/plugins/words.h"
#include "app/run/digest_avx2.h"
#include "core/exec/served_updates.h"
#include "kit/digest.h"

namespace engine::run {
namespace {

uint64_t DigestOf(const void* data, size_t size_bytes) {
#ifdef __x86_64__
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  if (has_avx2) return Digest64WithAvx2(data, size_bytes);
#endif
  return kit::Digest64(data, size_bytes);
}

class DigestCheck final : public exec::ReplicaCheck {
 public:
  DigestCheck(const train::RunConfig& config, base::RankContext& rank)
      : config_(config), rank_(rank) {}

  Status Take(const exec::ModelMemory& memory, const exec::UpdateStrategy& updates, uint64_t step,
              std::span<float> marks) override {
    taken_ = step;
    digests_.clear();
    const graph::Graph& graph = memory.graph();
    std::vector<int64_t> rows(graph.parameters.size());
    if (config_.train.sparse_pull) rows = exec::RowElements(graph);
    const OptimizerTraits& optimizer = updates.optimizer();
    for (int32_t i = 0; i < static_cast<int32_t>(rows.size()); ++i) {
      const graph::Parameter& parameter = graph.parameters[i];
      if (!parameter.buffer && rows[i] == 0) {
        ENGINE_RETURN_IF_ERROR(Add(memory, memory.parameter(i), parameter.name, ""));
      }
      for (int32_t s = 0; s < optimizer.state_count; ++s) {
        ENGINE_RETURN_IF_ERROR(
            Add(memory, updates.state(i, s), parameter.name, optimizer.state_names[s].view()));
      }
    }
    const uint64_t all = DigestOf(digests_.data(), digests_.size() * sizeof(uint64_t));
    const auto times = static_cast<float>(rank_.info.rank == 0 ? 1 - rank_.info.world_size : 1);
    for (size_t k = 0; k < marks.size(); ++k) {
      marks[k] = times * static_cast<float>(all >> (8 * k) & 255);
    }
    return {};
  }

  Status Conclude(std::span<const float> sums) override {
    if (std::ranges::any_of(sums, [](float sum) { return sum != 0; })) return Explain();
    same_ = taken_;
    return {};
  }

 private:
  Status Add(const exec::ModelMemory& memory, const TensorView& tensor, std::string_view parameter,
             std::string_view state) {
    if (tensor.data == nullptr) return {};
    const void* data = tensor.data;
    if (memory.accelerator() != nullptr) {
      copy_.resize(static_cast<size_t>(tensor.count()));
      ENGINE_RETURN_IF_ERROR(memory.ReadFloats(tensor, copy_.data()));
      data = copy_.data();
    }
    if (names_.size() == digests_.size()) {  // the first time
      names_.push_back(state.empty() ? fmt::format("'{}'", parameter)
                                     : fmt::format("state '{}' of '{}'", state, parameter));
    }
    digests_.push_back(DigestOf(data, tensor.size_bytes()));
    return {};
  }

  // Rank 0 compares what all have. outcome := rank " " sentence
  Status Explain() {
    base::Store& store = rank_.store;
    const auto key = [](int rank) { return "parameters/" + std::to_string(rank); };
    constexpr const char* kOutcome = "parameters/outcome";
    const std::string_view own(reinterpret_cast<const char*>(digests_.data()),
                               digests_.size() * sizeof(uint64_t));
    const int64_t timeout_ms = config_.communication.timeout_ms;
    ENGINE_RETURN_IF_ERROR(store.Set(key(rank_.info.rank), own));
    if (rank_.info.rank == 0) {
      std::vector<std::string> of_ranks(static_cast<size_t>(rank_.info.world_size));
      for (int rank = 0; rank < rank_.info.world_size; ++rank) {
        ENGINE_ASSIGN_OR_RETURN(of_ranks[rank], store.Get(key(rank), timeout_ms));
      }
      ENGINE_RETURN_IF_ERROR(store.Set(kOutcome, Compare(of_ranks)));
    }
    ENGINE_ASSIGN_OR_RETURN(const std::string outcome, store.Get(kOutcome, timeout_ms));
    return Status::Error(StatusCode::kPlugin, "%s", outcome.c_str() + outcome.find(' ') + 1)
        .WithRank(std::atoi(outcome.c_str()));
  }

  // What most ranks have is taken for right; of as many, what the lowest of them has.
  std::string Compare(const std::vector<std::string>& of_ranks) const {
    std::map<std::string_view, size_t> ranks_with;
    for (const std::string& digests : of_ranks) ++ranks_with[digests];
    const auto usual = std::ranges::max_element(
        of_ranks, {}, [&](const std::string& digests) { return ranks_with[digests]; });
    std::vector<std::string> odd;
    size_t first = names_.size();  // that differs on the first of them
    for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
      const auto at = std::ranges::mismatch(of_ranks[rank], *usual).in2;
      if (at == usual->end()) continue;
      if (odd.empty()) first = static_cast<size_t>(at - usual->begin()) / sizeof(uint64_t);
      odd.push_back(std::to_string(rank));
    }
    if (odd.empty()) {
      return fmt::format("-1 the communicator sums up wrongly: ranks have the same after step {}",
                         taken_);
    }
    const std::string before =
        fmt::format("parameters were the same on all ranks after step {}; ", same_);
    return fmt::format(
        "{} ranks diverged: {}after step {} {} {} from rank {} first in {}: resume from a "
        "checkpoint of before, and look for a plugin that does not compute the same on all ranks, "
        "or for bad memory",
        odd[0], same_ == 0 ? "" : before, taken_,
        (odd.size() == 1 ? "rank " : "ranks ") + plugins::Join(odd),
        odd.size() == 1 ? "differs" : "differ", usual - of_ranks.begin(), names_[first]);
  }

  const train::RunConfig& config_;
  base::RankContext& rank_;
  uint64_t taken_ = 0;              // the step of digests_
  uint64_t same_ = 0;               // the last one after which all ranks had the same; 0: none yet
  std::vector<std::string> names_;  // of the tensors that are compared
  std::vector<uint64_t> digests_;   // of each of them
  std::vector<float> copy_;         // of memory of a device
};

}  // namespace

std::unique_ptr<exec::ReplicaCheck> MakeReplicaCheck(const train::RunConfig& config,
                                                     base::RankContext& rank) {
  if (config.train.check_ranks_every == 0 || rank.info.world_size == 1) return nullptr;
  return std::make_unique<DigestCheck>(config, rank);
}

}  // namespace engine::run
