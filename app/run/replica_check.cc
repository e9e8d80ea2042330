// A digest of 64 bits travels in a sum of float32 as 8 numbers below 256. Rank 0 sends them 1 - N
// times, each of the other N - 1 ranks once, so a sum is zero where all ranks have sent the same.
// Partial sums are whole numbers below 2^24, so exact, for up to 65,000 ranks.
//
// Who differs is found by digests of each tensor, which every rank keeps until the sums are known:
// by then another step has begun to write. The 64 bits are a digest of those.
#include "app/run/replica_check.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "app/plugins/words.h"
#include "core/exec/served_updates.h"
#include "kit/digest.h"

namespace engine::run {
namespace {

class DigestCheck final : public exec::ReplicaCheck {
 public:
  DigestCheck(const train::RunConfig& config, base::RankContext& rank)
      : config_(config), rank_(rank) {}

  Status Take(const exec::ModelMemory& memory, const exec::UpdateStrategy& updates, uint64_t step,
              std::span<float> marks) override {
    taken_ = step;
    lines_.clear();
    const graph::Graph& graph = memory.graph();
    const std::vector<int64_t> rows = exec::RowElements(graph);
    const OptimizerTraits& optimizer = updates.optimizer();
    for (int32_t i = 0; i < static_cast<int32_t>(rows.size()); ++i) {
      const std::string name = "'" + graph.parameters[i].name + "'";
      const bool own = graph.parameters[i].buffer || (config_.train.sparse_pull && rows[i] > 0);
      if (!own) ENGINE_RETURN_IF_ERROR(Add(memory, memory.parameter(i), name));
      for (int32_t s = 0; s < optimizer.state_count; ++s) {
        const std::string state(optimizer.state_names[s].view());
        ENGINE_RETURN_IF_ERROR(
            Add(memory, updates.state(i, s), "state '" + state + "' of " + name));
      }
    }
    kit::Digest all;
    all.Add(lines_.data(), lines_.size());
    const auto times = static_cast<float>(rank_.info.rank == 0 ? 1 - rank_.info.world_size : 1);
    for (size_t k = 0; k < marks.size(); ++k) {
      marks[k] = times * static_cast<float>(all.Low64() >> (8 * k) & 255);
    }
    return {};
  }

  Status Conclude(std::span<const float> sums) override {
    if (std::ranges::any_of(sums, [](float sum) { return sum != 0; })) return Explain();
    same_ = taken_;
    return {};
  }

 private:
  Status Add(const exec::ModelMemory& memory, const TensorView& tensor, const std::string& name) {
    if (tensor.data == nullptr) return {};
    const void* data = tensor.data;
    if (memory.accelerator() != nullptr) {
      copy_.resize(static_cast<size_t>(tensor.count()));
      ENGINE_RETURN_IF_ERROR(memory.ReadFloats(tensor, copy_.data()));
      data = copy_.data();
    }
    kit::Digest digest;
    digest.Add(data, tensor.size_bytes());
    lines_.append(name).append("\t").append(digest.Text()).append("\n");
    return {};
  }

  // Rank 0 compares what all have. outcome := rank " " sentence
  Status Explain() {
    base::Store& store = rank_.store;
    const auto key = [](const std::string& of) { return "parameters/" + of; };
    std::string outcome;
    ENGINE_RETURN_IF_ERROR(store.Set(key(std::to_string(rank_.info.rank)), lines_));
    const int64_t timeout_ms = config_.communication.timeout_ms;
    if (rank_.info.rank == 0) {
      std::vector<std::string> of_ranks;
      for (int rank = 0; rank < rank_.info.world_size; ++rank) {
        ENGINE_ASSIGN_OR_RETURN(of_ranks.emplace_back(),
                                store.Get(key(std::to_string(rank)), timeout_ms));
      }
      outcome = Compare(of_ranks);
      ENGINE_RETURN_IF_ERROR(store.Set(key("outcome"), outcome));
    } else {
      ENGINE_ASSIGN_OR_RETURN(outcome, store.Get(key("outcome"), timeout_ms));
    }
    return Status::Error(StatusCode::kPlugin, "%s", outcome.c_str() + outcome.find(' ') + 1)
        .WithRank(std::atoi(outcome.c_str()));
  }

  // What most ranks have is taken for right; of as many, what the lowest of them has.
  std::string Compare(const std::vector<std::string>& of_ranks) const {
    std::map<std::string_view, size_t> ranks_with;
    for (const std::string& lines : of_ranks) ++ranks_with[lines];
    const auto usual = std::ranges::max_element(
        of_ranks, {}, [&](const std::string& lines) { return ranks_with[lines]; });
    std::vector<std::string> odd;
    for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
      if (of_ranks[rank] != *usual) odd.push_back(std::to_string(rank));
    }
    const std::string after = "after step " + std::to_string(taken_);
    if (odd.empty()) return "-1 the communicator sums up wrongly: ranks have the same " + after;
    const std::string& lines = of_ranks[static_cast<size_t>(std::atoi(odd[0].c_str()))];
    const auto at = std::ranges::mismatch(lines, *usual).in1;
    const size_t begin = std::string(lines.begin(), at).rfind('\n') + 1;
    return odd[0] + " ranks diverged: " +
           (same_ == 0 ? ""
                       : "parameters were the same on all ranks after step " +
                             std::to_string(same_) + "; ") +
           after + (odd.size() == 1 ? " rank " : " ranks ") + plugins::Join(odd) +
           (odd.size() == 1 ? " differs" : " differ") + " from rank " +
           std::to_string(usual - of_ranks.begin()) + " first in " +
           lines.substr(begin, lines.find('\t', begin) - begin) +
           ": resume from a checkpoint of before, and look for a plugin that does not compute the "
           "same on all ranks, or for bad memory";
  }

  const train::RunConfig& config_;
  base::RankContext& rank_;
  uint64_t taken_ = 0;       // the step of lines_
  uint64_t same_ = 0;        // the last one after which all ranks had the same; 0: none yet
  std::string lines_;        // a name and a digest of each tensor
  std::vector<float> copy_;  // of memory of a device
};

}  // namespace

std::unique_ptr<exec::ReplicaCheck> MakeReplicaCheck(const train::RunConfig& config,
                                                     base::RankContext& rank) {
  if (config.train.check_ranks_every == 0 || rank.info.world_size == 1) return nullptr;
  return std::make_unique<DigestCheck>(config, rank);
}

}  // namespace engine::run
