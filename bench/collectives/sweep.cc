#include "bench/collectives/sweep.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <utility>

namespace engine::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kMinIterations = 3;  // per turn
constexpr int64_t kMaxIterations = 2500;

// Iterations of a contender at one size and placement.
struct Figures {
  Timing timing;
  int64_t iterations = 0;  // per turn; 0: not known yet
};
// Of a contender at each size.
using AllFigures = std::vector<std::array<Figures, kPlacements>>;

class Sweep {
 public:
  Sweep(const SweepRequest& request, Sessions& sessions)
      : request_(request), sessions_(sessions), failures_(request.contenders.size()) {}

  Result<SweepResult> Run(const std::function<void(const SweepRow&)>& on_row);

 private:
  // A contender that is alive, and what it works on.
  struct Bout {
    LiveContender& contender;
    CollectiveBuffers& buffers;
    Figures& figures;
    Rendezvous& rendezvous;
    int ranks = 1;
    uint64_t key = 0;
  };

  Result<std::vector<SweepRow>> MeasureSizes(const std::vector<int64_t>& sizes);
  Result<std::unique_ptr<LiveContender>> Connect(size_t contender, base::RankContext& rank);
  Status TakeTurn(size_t contender, base::RankContext& rank, const std::vector<int64_t>& sizes,
                  AllFigures& figures);
  Status TakeSize(Bout& bout) const;
  Status Check(Bout& bout) const;
  Status WarmUp(Bout& bout) const;
  Status Measure(Bout& bout) const;
  Status RunOnce(Bout& bout) const {
    return bout.contender.Run(bout.buffers.MakeTransfer(bout.key, 0, request_.timeout_ms));
  }
  SweepRow Finish(int64_t bytes, const std::vector<std::array<Figures, kPlacements>*>& figures);
  // How many turns each contender has.
  int Rounds() const { return 2 * request_.blocks; }
  bool Asked(int placement) const { return placement == kInPlace || !request_.in_place_only; }
  CollectiveCase CaseOf(int64_t bytes, int placement) const {
    return CaseOfSize(request_.kind, bytes, sessions_.rank().info.world_size, placement == kInPlace,
                      request_.dtype);
  }

  const SweepRequest& request_;
  Sessions& sessions_;
  std::vector<Status> failures_;  // by contender
};

// Each turn has a communicator of its own: connections, threads and memory differ from one instance
// to the next, and what belongs to the instance must not pass for a property of the library. Only
// one is alive at a time, so none pays for the threads of the other.
Result<std::unique_ptr<LiveContender>> Sweep::Connect(size_t contender, base::RankContext& rank) {
  const Contender& chosen = request_.contenders[contender];
  ENGINE_ASSIGN_OR_RETURN(auto live, LiveContender::Create(chosen, rank));
  const CommunicatorTraits& traits = live->traits();
  if (!(traits.kinds & Bit(request_.kind)) || !(traits.dtypes & Bit(request_.dtype))) {
    return Status::Error(StatusCode::kPlugin, "communicator '%s' offers no %s of %s",
                         chosen.choice.entry.name.c_str(), Name(request_.kind),
                         Name(request_.dtype));
  }
  return live;
}

// Sums what is wrong over all ranks, so that all of them know.
Status Sweep::Check(Bout& bout) const {
  Timing& timing = bout.figures.timing;
  if (bout.contender.traits().no_op != 0 && bout.ranks > 1) {
    timing.wrong = -1;
    return {};
  }
  bout.buffers.Fill();
  ENGINE_RETURN_IF_ERROR(RunOnce(bout));
  std::string first;
  const int64_t wrong = bout.buffers.CountWrong(&first);
  ENGINE_ASSIGN_OR_RETURN(
      const std::string sum,
      bout.rendezvous.Meet(std::to_string(wrong) + " " + first, [](const auto& of_ranks) {
        int64_t all = 0;
        std::string words;
        for (const std::string& text : of_ranks) {
          all += std::atoll(text.c_str());
          if (words.empty()) words = text.substr(text.find(' ') + 1);
        }
        return std::to_string(all) + " " + words;
      }));
  timing.wrong += std::atoll(sum.c_str());
  if (timing.first_wrong.empty()) timing.first_wrong = sum.substr(sum.find(' ') + 1);
  return {};
}

// Rank 0's clock decides, in the first turn, how often all ranks run it in each.
Status Sweep::WarmUp(Bout& bout) const {
  bout.buffers.Clear();
  ENGINE_RETURN_IF_ERROR(bout.rendezvous.Wait());
  const auto begin = Clock::now();
  for (int i = 0; i < request_.warm_ups; ++i) ENGINE_RETURN_IF_ERROR(RunOnce(bout));
  if (bout.figures.iterations != 0) return {};
  const double each =
      std::chrono::duration<double>(Clock::now() - begin).count() / std::max(1, request_.warm_ups);
  const auto fit = static_cast<int64_t>(request_.seconds / Rounds() / std::max(each, 1e-9));
  const int64_t wanted = request_.iterations > 0
                             ? std::max<int64_t>(1, request_.iterations / Rounds())
                             : std::clamp(fit, kMinIterations, kMaxIterations);
  ENGINE_ASSIGN_OR_RETURN(const std::string iterations, bout.rendezvous.Meet("", [&](const auto&) {
    return std::to_string(wanted);
  }));
  bout.figures.iterations = std::atoll(iterations.c_str());
  return {};
}

Status Sweep::Measure(Bout& bout) const {
  std::vector<double> times_us;
  times_us.reserve(static_cast<size_t>(bout.figures.iterations));
  for (int64_t i = 0; i < bout.figures.iterations; ++i) {
    const auto begin = Clock::now();
    ENGINE_RETURN_IF_ERROR(RunOnce(bout));
    times_us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
  }
  ENGINE_ASSIGN_OR_RETURN(times_us, bout.rendezvous.Largest(times_us));
  bout.figures.timing.turns_us.push_back(std::move(times_us));
  return {};
}

Status Sweep::TakeSize(Bout& bout) const {
  ENGINE_RETURN_IF_ERROR(Check(bout));
  if (bout.figures.timing.wrong > 0) return {};  // not worth timing
  ENGINE_RETURN_IF_ERROR(WarmUp(bout));
  ENGINE_RETURN_IF_ERROR(Measure(bout));
  // What goes wrong only after many repetitions counts as well.
  return Check(bout);
}

Status Sweep::TakeTurn(size_t contender, base::RankContext& rank, const std::vector<int64_t>& sizes,
                       AllFigures& figures) {
  Rendezvous rendezvous(rank, 4 * request_.timeout_ms);
  ENGINE_ASSIGN_OR_RETURN(const auto live, Connect(contender, rank));
  std::vector<std::unique_ptr<CollectiveBuffers>> buffers;  // outlive what is under way
  uint64_t key = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    for (const int placement : {kOutOfPlace, kInPlace}) {
      Figures& of_case = figures[i][static_cast<size_t>(placement)];
      if (!Asked(placement) || of_case.timing.wrong > 0) continue;
      buffers.push_back(std::make_unique<CollectiveBuffers>(CaseOf(sizes[i], placement), rank.info,
                                                            live->memory()));
      Bout bout{*live, *buffers.back(), of_case, rendezvous, rank.info.world_size, ++key};
      ENGINE_RETURN_IF_ERROR(TakeSize(bout));
    }
  }
  return rendezvous.Wait();  // before any rank disconnects
}

SweepRow Sweep::Finish(int64_t bytes,
                       const std::vector<std::array<Figures, kPlacements>*>& figures) {
  SweepRow row;
  for (const int placement : {kOutOfPlace, kInPlace}) {
    if (!Asked(placement)) continue;
    const CollectiveCase c = CaseOf(bytes, placement);
    const int ranks = sessions_.rank().info.world_size;
    row.bytes = SizeBytes(c, ranks);
    row.count = c.count;
    std::vector<Timing>& timings = row.timings[placement];
    for (auto* const of_contender : figures) {
      Timing& timing =
          timings.emplace_back(std::move((*of_contender)[static_cast<size_t>(placement)].timing));
      if (timing.wrong > 0) timing.turns_us.clear();
      std::vector<double> all;
      for (const auto& turn : timing.turns_us) all.insert(all.end(), turn.begin(), turn.end());
      timing.iterations = static_cast<int64_t>(all.size());
      timing.us = Summarize(all);
      if (timing.us.median <= 0) continue;
      timing.algbw = static_cast<double>(row.bytes) / timing.us.median * 1e-3;
      timing.busbw = timing.algbw * BusFactor(c.kind, ranks);
    }
    const bool both = timings.size() == 2 && timings[0].iterations > 0 && timings[1].iterations > 0;
    if (both)
      row.ratio[placement] = Compare(timings[0].turns_us, timings[1].turns_us, request_.seed);
  }
  return row;
}

Result<std::vector<SweepRow>> Sweep::MeasureSizes(const std::vector<int64_t>& sizes) {
  const size_t contenders = request_.contenders.size();
  std::vector<AllFigures> figures(contenders, AllFigures(sizes.size()));
  ENGINE_RETURN_IF_ERROR(sessions_.TakeTurns(
      Rounds(),
      [&](size_t contender, base::RankContext& rank) {
        return TakeTurn(contender, rank, sizes, figures[contender]);
      },
      &failures_));
  std::vector<SweepRow> rows;
  if (sessions_.rank().info.rank != 0) return rows;
  for (size_t i = 0; i < sizes.size(); ++i) {
    std::vector<std::array<Figures, kPlacements>*> of_size;
    for (size_t k = 0; k < contenders; ++k) {
      if (!failures_[k].ok()) figures[k][i] = {};  // of its rounds some are missing
      of_size.push_back(&figures[k][i]);
    }
    rows.push_back(Finish(sizes[i], of_size));
  }
  return rows;
}

void AddWrong(const SweepRequest& request, const SweepRow& row, SweepResult* result) {
  for (const Placement placement : {kOutOfPlace, kInPlace}) {
    for (size_t i = 0; i < row.timings[placement].size(); ++i) {
      const Timing& timing = row.timings[placement][i];
      if (timing.wrong <= 0) continue;
      result->wrong += timing.wrong;
      if (!result->wrong_in_words.empty()) continue;
      const Contender& contender = request.contenders[i];
      result->wrong_in_words = "communicator '" + contender.choice.entry.name + "' (" +
                               contender.label + ") gives wrong results: " + Name(request.kind) +
                               " of " + std::to_string(row.bytes) + " bytes " + Name(placement) +
                               ": " + timing.first_wrong;
    }
  }
}

Result<SweepResult> Sweep::Run(const std::function<void(const SweepRow&)>& on_row) {
  SweepResult result;
  const std::vector<int64_t> sizes = Sizes(request_, sessions_.rank().info.world_size);
  const size_t at_once = request_.all_in_a_turn ? sizes.size() : 1;
  for (auto size = sizes.begin(); size != sizes.end();
       size += static_cast<std::ptrdiff_t>(at_once)) {
    const std::vector<int64_t> group(size, size + static_cast<std::ptrdiff_t>(at_once));
    ENGINE_ASSIGN_OR_RETURN(std::vector<SweepRow> rows, MeasureSizes(group));
    for (SweepRow& row : rows) {
      AddWrong(request_, row, &result);
      on_row(row);
      result.rows.push_back(std::move(row));
    }
  }
  result.failures = failures_;
  return result;
}

}  // namespace

std::vector<int64_t> Sizes(const SweepRequest& request, int ranks) {
  std::vector<int64_t> sizes;
  for (double bytes = static_cast<double>(request.min_bytes);
       bytes <= static_cast<double>(request.max_bytes); bytes *= request.factor) {
    const int64_t size = SizeBytes(
        CaseOfSize(request.kind, static_cast<int64_t>(bytes), ranks, false, request.dtype), ranks);
    if (sizes.empty() || size > sizes.back()) sizes.push_back(size);
  }
  return sizes;
}

Result<SweepResult> RunSweep(const SweepRequest& request, Sessions& sessions,
                             const std::function<void(const SweepRow&)>& on_row) {
  if (sessions.rank().info.world_size > kMaxCheckedRanks) {
    return Status::Error(StatusCode::kInvalidArgument,
                         "results can be checked for up to %d ranks, not for %d", kMaxCheckedRanks,
                         sessions.rank().info.world_size);
  }
  return Sweep(request, sessions).Run(on_row);
}

}  // namespace engine::bench
