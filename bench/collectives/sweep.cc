#include "bench/collectives/sweep.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <utility>

#include "bench/process/rendezvous.h"

namespace engine::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWarmUps = 3;
constexpr int64_t kMinIterations = 3;  // per turn
constexpr int64_t kMaxIterations = 2500;

std::string Bytes(const std::vector<double>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double)};
}

// Adds the slowest rank of each iteration to `times_us`.
void AddSlowest(const std::vector<std::string>& of_ranks, std::vector<double>* times_us) {
  std::vector<double> slowest(of_ranks.front().size() / sizeof(double), 0.0);
  std::vector<double> times(slowest.size());
  for (const std::string& bytes : of_ranks) {
    std::memcpy(times.data(), bytes.data(), std::min(bytes.size(), times.size() * sizeof(double)));
    for (size_t i = 0; i < times.size(); ++i) slowest[i] = std::max(slowest[i], times[i]);
  }
  times_us->insert(times_us->end(), slowest.begin(), slowest.end());
}

// Iterations of a contender at one size and placement.
struct Figures {
  Timing timing;
  int64_t iterations = 0;                     // per turn; 0: not known yet
  std::vector<std::vector<double>> turns_us;  // rank 0: of each turn
};

class Sweep {
 public:
  Sweep(const SweepRequest& request, base::RankContext& rank)
      : request_(request), rank_(rank), rendezvous_(rank, 4 * request.timeout_ms) {}

  Result<SweepResult> Run(const std::function<void(const SweepRow&)>& on_row);

 private:
  // A contender that is alive, and what it works on.
  struct Bout {
    LiveContender& contender;
    CollectiveBuffers& buffers;
    Figures& figures;
    uint64_t key = 0;
  };

  Result<SweepRow> MeasureSize(int64_t bytes);
  Result<std::unique_ptr<LiveContender>> Connect(size_t contender);
  Status TakeTurn(size_t contender, int64_t bytes, Figures (&figures)[kPlacements]);
  Status Check(Bout& bout);
  Status WarmUp(Bout& bout);
  Status Measure(Bout& bout);
  Status RunOnce(Bout& bout) {
    return bout.contender.Run(bout.buffers.MakeTransfer(bout.key, 0, request_.timeout_ms));
  }
  // How many turns each contender has.
  int TurnsOfEach() const {
    return 4 * request_.blocks / static_cast<int>(request_.contenders.size());
  }

  const SweepRequest& request_;
  base::RankContext& rank_;
  Rendezvous rendezvous_;
  int instances_ = 0;
};

// Each turn has a communicator of its own: connections, threads and memory differ from one instance
// to the next, and what belongs to the instance must not pass for a property of the library. Only
// one is alive at a time, so none pays for the threads of the other.
Result<std::unique_ptr<LiveContender>> Sweep::Connect(size_t contender) {
  ENGINE_ASSIGN_OR_RETURN(
      std::unique_ptr<LiveContender> live,
      LiveContender::Create(request_.contenders[contender], instances_++, rank_));
  const CommunicatorTraits& traits = live->traits();
  if (!(traits.kinds & Bit(request_.kind)) || !(traits.dtypes & Bit(DType::kFloat32))) {
    return Status::Error(StatusCode::kPlugin, "communicator '%s' offers no %s of float32",
                         request_.contenders[contender].choice.entry.name.c_str(),
                         Name(request_.kind));
  }
  return live;
}

// Sums what is wrong over all ranks, so that all of them know.
Status Sweep::Check(Bout& bout) {
  Timing& timing = bout.figures.timing;
  if (bout.contender.traits().no_op != 0 && rank_.info.world_size > 1) {
    timing.wrong = -1;
    return {};
  }
  bout.buffers.Fill();
  ENGINE_RETURN_IF_ERROR(RunOnce(bout));
  std::string first;
  const int64_t wrong = bout.buffers.CountWrong(&first);
  ENGINE_ASSIGN_OR_RETURN(
      const std::string sum,
      rendezvous_.Meet(std::to_string(wrong) + " " + first, [](const auto& of_ranks) {
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
Status Sweep::WarmUp(Bout& bout) {
  bout.buffers.Clear();
  ENGINE_RETURN_IF_ERROR(rendezvous_.Wait());
  const auto begin = Clock::now();
  for (int i = 0; i < kWarmUps; ++i) ENGINE_RETURN_IF_ERROR(RunOnce(bout));
  if (bout.figures.iterations != 0) return {};
  const double each = std::chrono::duration<double>(Clock::now() - begin).count() / kWarmUps;
  const auto wanted = static_cast<int64_t>(request_.seconds / TurnsOfEach() / std::max(each, 1e-9));
  ENGINE_ASSIGN_OR_RETURN(const std::string iterations, rendezvous_.Meet("", [&](const auto&) {
    return std::to_string(std::clamp(wanted, kMinIterations, kMaxIterations));
  }));
  bout.figures.iterations = std::atoll(iterations.c_str());
  return {};
}

Status Sweep::Measure(Bout& bout) {
  std::vector<double> times_us;
  times_us.reserve(static_cast<size_t>(bout.figures.iterations));
  for (int64_t i = 0; i < bout.figures.iterations; ++i) {
    const auto begin = Clock::now();
    ENGINE_RETURN_IF_ERROR(RunOnce(bout));
    times_us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
  }
  std::vector<double>& turn = bout.figures.turns_us.emplace_back();
  return rendezvous_
      .Meet(Bytes(times_us),
            [&turn](const auto& of_ranks) {
              AddSlowest(of_ranks, &turn);
              return std::string();
            })
      .status();
}

Status Sweep::TakeTurn(size_t contender, int64_t bytes, Figures (&figures)[kPlacements]) {
  ENGINE_ASSIGN_OR_RETURN(const std::unique_ptr<LiveContender> live, Connect(contender));
  std::vector<std::unique_ptr<CollectiveBuffers>> buffers;  // outlive what is under way
  for (const int placement : {kOutOfPlace, kInPlace}) {
    const CollectiveCase c =
        CaseOfSize(request_.kind, bytes, rank_.info.world_size, placement == kInPlace);
    buffers.push_back(std::make_unique<CollectiveBuffers>(c, rank_.info));
    Bout bout{*live, *buffers.back(), figures[placement], static_cast<uint64_t>(placement) + 1};
    ENGINE_RETURN_IF_ERROR(Check(bout));
    if (bout.figures.timing.wrong > 0) continue;  // not worth timing
    ENGINE_RETURN_IF_ERROR(WarmUp(bout));
    ENGINE_RETURN_IF_ERROR(Measure(bout));
    // What goes wrong only after many repetitions counts as well.
    ENGINE_RETURN_IF_ERROR(Check(bout));
  }
  return rendezvous_.Wait();  // before any rank disconnects
}

void Finish(const CollectiveCase& c, int ranks, std::vector<Figures*> figures, uint64_t seed,
            SweepRow* row) {
  const int placement = c.in_place ? kInPlace : kOutOfPlace;
  for (const Figures* of_contender : figures) {
    std::vector<double> all;
    for (const auto& turn : of_contender->turns_us) all.insert(all.end(), turn.begin(), turn.end());
    Timing timing = of_contender->timing;
    if (timing.wrong > 0) all.clear();
    timing.iterations = static_cast<int64_t>(all.size());
    timing.us = Summarize(all);
    if (timing.us.median > 0) {
      timing.algbw = static_cast<double>(row->bytes) / timing.us.median * 1e-3;
      timing.busbw = timing.algbw * BusFactor(c.kind, ranks);
    }
    row->timings[placement].push_back(timing);
  }
  if (figures.size() != 2 || figures[0]->timing.wrong > 0 || figures[1]->timing.wrong > 0) return;
  std::vector<Pair> pairs;
  for (size_t i = 0; i < figures[0]->turns_us.size(); ++i) {
    pairs.push_back({figures[0]->turns_us[i], figures[1]->turns_us[i]});
  }
  row->ratio[placement] = EstimateRatio(pairs, {.seed = seed});
}

Result<SweepRow> Sweep::MeasureSize(int64_t bytes) {
  const int ranks = rank_.info.world_size;
  const size_t contenders = request_.contenders.size();
  Figures figures[2][kPlacements];  // by contender
  for (int turn = 0; turn < 4 * request_.blocks; ++turn) {
    const bool second = turn % 4 == 1 || turn % 4 == 2;
    const size_t contender = second ? contenders - 1 : 0;
    const bool wrong = figures[contender][kOutOfPlace].timing.wrong > 0 &&
                       figures[contender][kInPlace].timing.wrong > 0;
    if (!wrong) ENGINE_RETURN_IF_ERROR(TakeTurn(contender, bytes, figures[contender]));
  }
  SweepRow row;
  for (const int placement : {kOutOfPlace, kInPlace}) {
    const CollectiveCase c = CaseOfSize(request_.kind, bytes, ranks, placement == kInPlace);
    row.bytes = SizeBytes(c, ranks);
    row.count = c.count;
    std::vector<Figures*> of_placement;
    for (size_t i = 0; i < contenders; ++i) of_placement.push_back(&figures[i][placement]);
    if (rank_.info.rank == 0) Finish(c, ranks, of_placement, request_.seed, &row);
  }
  return row;
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
  for (const int64_t bytes : Sizes(request_, rank_.info.world_size)) {
    ENGINE_ASSIGN_OR_RETURN(SweepRow row, MeasureSize(bytes));
    if (rank_.info.rank != 0) continue;
    AddWrong(request_, row, &result);
    on_row(row);
    result.rows.push_back(std::move(row));
  }
  return result;
}

}  // namespace

std::vector<int64_t> Sizes(const SweepRequest& request, int ranks) {
  std::vector<int64_t> sizes;
  for (double bytes = static_cast<double>(request.min_bytes);
       bytes <= static_cast<double>(request.max_bytes); bytes *= request.factor) {
    const int64_t size =
        SizeBytes(CaseOfSize(request.kind, static_cast<int64_t>(bytes), ranks, false), ranks);
    if (sizes.empty() || size > sizes.back()) sizes.push_back(size);
  }
  return sizes;
}

Result<SweepResult> RunSweep(const SweepRequest& request, base::RankContext& rank,
                             const std::function<void(const SweepRow&)>& on_row) {
  if (rank.info.world_size > kMaxCheckedRanks) {
    return Status::Error(StatusCode::kInvalidArgument,
                         "results can be checked for up to %d ranks, not for %d", kMaxCheckedRanks,
                         rank.info.world_size);
  }
  return Sweep(request, rank).Run(on_row);
}

}  // namespace engine::bench
