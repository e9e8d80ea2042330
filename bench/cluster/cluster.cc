#include "bench/cluster/cluster.h"

#include <algorithm>

#include "app/plugins/words.h"
#include "kit/inner_communicator.h"

namespace engine::bench {
namespace {

constexpr int kFirstRounds = 4;  // of many sides, of which few are looked at again
constexpr int kMostTimes = 4;    // as many rounds as asked for, in the last comparison

bool IsWrong(const SweepResult& result, size_t contender) {
  return std::any_of(result.rows.begin(), result.rows.end(), [&](const SweepRow& row) {
    return row.timings[kInPlace][contender].wrong > 0;
  });
}

class Cluster {
 public:
  Cluster(const ClusterRequest& request, base::RankContext& rank,
          const std::function<void(const std::string&)>& progress)
      : request_(request), sessions_(rank), info_(rank.info), progress_(progress) {}

  Result<ClusterResult> Run();

 private:
  using Options = std::vector<std::string>;

  Status FindHosts();
  Status MeasurePairs();
  Status MeasurePair(const char* name, int other, bool same);
  Status Probe();
  Status MeasureCollectives();
  Result<SweepResult> Sweep(const SweepRequest& request);
  Status FindTable();
  Status CompareCommunicators();
  Status CompareTraining();
  Status AddSide(const std::string& name, const Options& plugins, const Options& options,
                 std::vector<TrainingSide>* sides);
  Status AddVariants(const TrainingSide& base, std::vector<TrainingSide>* sides);
  Result<size_t> Race(const char* title, const std::vector<TrainingSide>& sides, int rounds);
  Status UntilClear(size_t sides, const std::function<Status(int times)>& compare);
  void Conclude(const std::string& first, const std::string& where,
                const std::vector<std::string>& fragments);
  // Collective: what rank 0 says.
  Result<std::string> Decide(const std::function<std::string()>& decide) {
    return sessions_.all().Meet("", [&](const auto&) { return decide(); });
  }
  void LeaveOut(const std::string& name, const Status& why) {
    result_.left_out.emplace_back(name, why.message());
  }
  void Say(const std::string& line) const {
    if (info_.rank == 0) progress_(line);
  }

  const ClusterRequest& request_;
  Sessions sessions_;
  const RankInfo info_;
  const std::function<void(const std::string&)>& progress_;
  std::vector<Contender> contenders_;  // that run on all ranks
  Options table_;                      // of by_size
  std::vector<Turns> turns_;           // of what ran last
  ClusterResult result_;
};

Status Cluster::FindHosts() {
  ENGINE_ASSIGN_OR_RETURN(
      const std::string names,
      sessions_.all().Meet(kit::HostName(info_), [](const std::vector<std::string>& of_ranks) {
        return plugins::Join(of_ranks, "\n");
      }));
  std::vector<std::string> seen;
  for (const std::string& name : plugins::Split(names, '\n')) {
    const auto found = std::find(seen.begin(), seen.end(), name);
    result_.hosts.push_back(static_cast<int>(found - seen.begin()));
    if (found == seen.end()) seen.push_back(name);
  }
  return {};
}

Status Cluster::MeasurePair(const char* name, int other, bool same) {
  Say(std::string("two ranks, ") + name);
  PairClass pair{.name = name, .other = other, .sweep = {request_.sweep, {}}};
  SweepRequest& request = pair.sweep.request;
  request.min_bytes = kSmallBytes;
  request.max_bytes = kLargeBytes;
  request.factor = static_cast<double>(kLargeBytes) / kSmallBytes;
  request.all_in_a_turn = request.in_place_only = true;
  const auto number = static_cast<int32_t>(info_.rank == other);
  const RankInfo info{.rank = number,
                      .world_size = 2,
                      .local_rank = same ? number : 0,
                      .local_world_size = same ? 2 : 1,
                      .one_host = same ? 1u : 0u,
                      .rendezvous_timeout_ms = info_.rendezvous_timeout_ms,
                      .transfer_timeout_ms = info_.transfer_timeout_ms};
  std::function<Status(base::RankContext&)> measure;
  if (info_.rank == 0 || info_.rank == other) {
    measure = [&](base::RankContext& rank) -> Status {
      Sessions sessions(rank);
      ENGINE_ASSIGN_OR_RETURN(pair.sweep.result, RunSweep(request, sessions, [](auto&) {}));
      return {};
    };
  }
  Status failure;
  ENGINE_RETURN_IF_ERROR(sessions_.Try(info, measure, &failure));
  if (!failure.ok()) LeaveOut(std::string("two ranks, ") + name, failure);
  result_.pairs.push_back(std::move(pair));
  return {};
}

// A pair stands for its class: rank 0, which has the figures, and the first rank on its host or not.
Status Cluster::MeasurePairs() {
  const std::vector<int>& hosts = result_.hosts;
  for (const bool same : {true, false}) {
    const auto other = std::find_if(hosts.begin() + 1, hosts.end(),
                                    [&](int host) { return (host == hosts[0]) == same; });
    if (other == hosts.end()) continue;
    ENGINE_RETURN_IF_ERROR(MeasurePair(same ? "same host" : "between hosts",
                                       static_cast<int>(other - hosts.begin()), same));
  }
  return {};
}

Status Cluster::Probe() {
  Say("which communicators run here");
  const std::vector<Contender>& all = request_.sweep.contenders;
  std::vector<Status> failures(all.size());
  ENGINE_RETURN_IF_ERROR(sessions_.TakeTurns(
      1,
      [&](size_t i, base::RankContext& rank) -> Status {
        ENGINE_ASSIGN_OR_RETURN(const auto live, LiveContender::Create(all[i], rank));
        if (live->traits().no_op == 0) return Rendezvous(rank, request_.sweep.timeout_ms).Wait();
        return Status::Error(StatusCode::kPlugin, "it moves nothing");
      },
      &failures));
  for (size_t i = 0; i < all.size(); ++i) {
    if (failures[i].ok()) contenders_.push_back(all[i]);
    if (!failures[i].ok()) LeaveOut(all[i].label, failures[i]);
  }
  if (!contenders_.empty()) return {};
  return Status::Error(StatusCode::kPlugin, "no communicator runs on these ranks; %s: %s",
                       result_.left_out[0].first.c_str(), result_.left_out[0].second.c_str());
}

Result<SweepResult> Cluster::Sweep(const SweepRequest& request) {
  ENGINE_ASSIGN_OR_RETURN(SweepResult result, RunSweep(request, sessions_, [](auto&) {}));
  if (result_.wrong_in_words.empty()) result_.wrong_in_words = result.wrong_in_words;
  const auto drop = [&](const std::string& name, const Status& why) {
    LeaveOut(name, why.WithContext("%s of %s", Name(request.kind), Name(request.dtype)));
    // What is not offered says nothing about the rest; what breaks once is not waited for again.
    if (why.code() == StatusCode::kPlugin) return;
    std::erase_if(contenders_, [&](const Contender& one) { return one.label == name; });
  };
  for (size_t i = 0; i < request.contenders.size(); ++i) {
    const Status& failure = result.failures[i];
    if (failure.ok()) continue;
    drop(request.contenders[i].label, failure);
  }
  // Rank 0 alone has counted. Who is wrong once is trusted nowhere.
  ENGINE_ASSIGN_OR_RETURN(const std::string wrong, Decide([&] {
                            std::vector<std::string> names;
                            for (size_t i = 0; i < request.contenders.size(); ++i) {
                              if (IsWrong(result, i)) names.push_back(request.contenders[i].label);
                            }
                            return plugins::Join(names, "\n");
                          }));
  if (wrong.empty()) return result;
  for (const std::string& name : plugins::Split(wrong, '\n')) {
    drop(name, Status::Error(StatusCode::kBadData, "it gives wrong results"));
  }
  return result;
}

Status Cluster::MeasureCollectives() {
  for (const DType dtype : request_.dtypes) {
    for (const TransferKind kind : request_.kinds) {
      Say(std::string(Name(kind)) + " of " + Name(dtype));
      SweepRequest request = request_.sweep;
      request.kind = kind;
      request.dtype = dtype;
      request.all_in_a_turn = request.in_place_only = true;
      request.contenders = contenders_;
      ENGINE_ASSIGN_OR_RETURN(SweepResult result, Sweep(request));
      result_.sweeps.push_back({std::move(request), std::move(result)});
    }
  }
  return {};
}

// The table of by_size, if one communicator is not the best of all, as one more contender.
Status Cluster::FindTable() {
  if (request_.by_size == nullptr) return {};
  ENGINE_ASSIGN_OR_RETURN(const std::string text, Decide([&] {
                            return plugins::Join(
                                BySizeOptions(result_.sweeps, NamesOf(contenders_)), "\n");
                          }));
  if (text.empty()) return {};
  table_ = plugins::Split(text, '\n');
  const auto made = request_.by_size(table_);
  if (made.ok()) contenders_.push_back(*made);
  if (!made.ok()) LeaveOut("by_size", made.status());
  return {};
}

// Compares the defaults with what is better, which leaves its figures in `turns_`; again with rounds
// of their own, twice as many, while a busy machine leaves it open who is faster by more than a little,
// or says it with an interval so wide that it may be luck.
Status Cluster::UntilClear(size_t sides, const std::function<Status(int times)>& compare) {
  turns_.assign(1, {});  // if there is nothing beside the defaults
  std::string open = sides > 1 ? "open" : "";
  for (int times = 1; !open.empty() && times <= kMostTimes; times *= 2) {
    ENGINE_RETURN_IF_ERROR(compare(times));
    ENGINE_ASSIGN_OR_RETURN(
        open, Decide([&] {
          const std::vector<Turns> others(turns_.begin() + 1, turns_.end());
          const auto best = WinnerOf(others, request_.sweep.seed);
          if (!best || turns_[0].empty()) return std::string();
          const Ratio gain = Compare(turns_[0], others[best->contender], request_.sweep.seed);
          const bool is_clear = gain.high < 1.05 || (gain.low > 1 && gain.high < 1.5 * gain.low);
          return std::string(is_clear ? "" : "open");
        }));
  }
  return {};
}

// The first of `turns_` are the defaults. What is not surely faster is not recommended: a fragment
// has to be worth its lines.
void Cluster::Conclude(const std::string& first, const std::string& where,
                       const std::vector<std::string>& fragments) {
  const std::optional<Winner> winner = WinnerOf(turns_, request_.sweep.seed);
  const size_t best = winner ? winner->contender : 0;
  if (best == 0) {
    result_.sentence =
        "keep the defaults (" + first + "): nothing that was tried is faster " + where;
    return;
  }
  result_.gain = Compare(turns_[0], turns_[best], request_.sweep.seed);
  result_.sentence =
      ConclusionText(result_.gain, "the defaults (" + first + ") " + where, "the fragment");
  if (Judge(result_.gain) == Conclusion::kFaster) {
    result_.fragment = fragments[best];
  } else {
    result_.sentence = "keep the defaults; " + result_.sentence;
  }
}

// Without a model: the default communicator, the best one and the table, in all-reduces of their
// own, for a choice from many is lucky in the figures that it was made by.
Status Cluster::CompareCommunicators() {
  const auto named = [&](const std::string& name) {
    return std::find_if(contenders_.begin(), contenders_.end(),
                        [&](const Contender& contender) { return contender.label == name; });
  };
  const auto usual = named(request_.default_communicator);
  if (usual == contenders_.end()) {
    result_.sentence = "the default communicator, " + request_.default_communicator +
                       ", was not measured: there is nothing to compare with";
    return {};
  }
  ENGINE_ASSIGN_OR_RETURN(
      const std::string best, Decide([&] {
        const ClusterSweep& sweep = result_.sweeps[0];
        const auto winner = WinnerOf(OverSizes(sweep.result), request_.sweep.seed);
        return winner ? sweep.request.contenders[winner->contender].label : std::string();
      }));
  SweepRequest request = request_.sweep;
  request.kind = request_.kinds[0];
  request.dtype = request_.dtypes[0];
  request.all_in_a_turn = request.in_place_only = true;
  request.contenders = {*usual};
  const std::string first = usual->label;
  std::vector<std::string> fragments = {""};
  for (const std::string& name : {best, std::string(table_.empty() ? "" : "by_size")}) {
    const auto found = named(name);
    if (name == first || found == contenders_.end()) continue;
    request.contenders.push_back(*found);
    fragments.push_back(Fragment({found->choice}));
  }
  ENGINE_RETURN_IF_ERROR(UntilClear(request.contenders.size(), [&](int times) -> Status {
    Say("the best ones beside the default");
    request.blocks = times * request_.sweep.blocks;
    ENGINE_ASSIGN_OR_RETURN(const SweepResult result, Sweep(request));
    turns_ = OverSizes(result);
    return {};
  }));
  Conclude(first, std::string("in ") + Name(request.kind) + " over all sizes", fragments);
  return {};
}

// A side that cannot be, or that is one of those already there, is left out.
Status Cluster::AddSide(const std::string& name, const Options& plugins, const Options& options,
                        std::vector<TrainingSide>* sides) {
  const auto config = request_.model->load(plugins, options);
  if (!config.ok() && sides->empty()) return config.status();
  if (!config.ok()) LeaveOut(name, config.status());
  if (!config.ok() || std::any_of(sides->begin(), sides->end(), [&](const TrainingSide& side) {
        return side.config.run().text == config->run().text;
      })) {
    return {};
  }
  sides->push_back({name, plugins, options, *config});
  return {};
}

// Each size of its scheduler at some other values, the others as they are: buckets, slices, credit.
// Steps of 8, because a factor of two seldom shows beside the noise of a step.
Status Cluster::AddVariants(const TrainingSide& base, std::vector<TrainingSide>* sides) {
  const plugin::PluginChoice& scheduler = base.config.plugins().scheduler;
  for (const plugin::OwnedOption& option : scheduler.options) {
    if (option.type != OptionType::kInt || !option.name.ends_with("_bytes")) continue;
    for (const int64_t value : {64 << 10, 512 << 10, 4 << 20, 32 << 20}) {
      Options options = base.options;
      options.push_back(scheduler.entry.name + "." + option.name + "=" + std::to_string(value));
      ENGINE_RETURN_IF_ERROR(
          AddSide(option.name + " " + SizeText(value), base.plugins, options, sides));
    }
  }
  return {};
}

// Collective: the number of the side that is the fastest.
Result<size_t> Cluster::Race(const char* title, const std::vector<TrainingSide>& sides,
                             int rounds) {
  if (sides.size() == 1) return size_t{0};
  Say("training: " + std::string(title) + ", " + std::to_string(sides.size()) + " sides");
  const ModelRequest& model = *request_.model;
  ENGINE_ASSIGN_OR_RETURN(
      std::vector<SideSteps> steps,
      RaceTraining(sides, rounds, model.warmup, model.loss_tolerance, sessions_));
  for (const SideSteps& side : steps) {
    if (!side.failure.ok()) LeaveOut(side.name, side.failure);
  }
  ENGINE_RETURN_IF_ERROR(steps[0].failure);
  turns_.clear();
  for (const SideSteps& side : steps) turns_.push_back(side.seconds);
  result_.races.emplace_back(title, std::move(steps));
  ENGINE_ASSIGN_OR_RETURN(const std::string best, Decide([&] {
                            return std::to_string(WinnerOf(turns_, request_.sweep.seed)->contender);
                          }));
  return static_cast<size_t>(std::atoll(best.c_str()));
}

// Every communicator with every scheduler; the sizes of the best one's scheduler; and what came of
// it beside the defaults in runs of their own.
Status Cluster::CompareTraining() {
  std::vector<TrainingSide> sides;
  ENGINE_RETURN_IF_ERROR(AddSide("defaults", {}, {}, &sides));
  for (const Contender& contender : contenders_) {
    for (const std::string& scheduler : request_.model->schedulers) {
      const Options options = contender.label == "by_size" ? table_ : Options();
      ENGINE_RETURN_IF_ERROR(AddSide(contender.label + ", " + scheduler,
                                     {contender.label, scheduler}, options, &sides));
    }
  }
  ENGINE_ASSIGN_OR_RETURN(const size_t best,
                          Race("communicators and schedulers", sides, kFirstRounds));
  std::vector<TrainingSide> variants = {sides[best]};
  ENGINE_RETURN_IF_ERROR(AddVariants(sides[best], &variants));
  ENGINE_ASSIGN_OR_RETURN(const size_t variant,
                          Race("sizes of the scheduler", variants, kFirstRounds));
  // Runs of their own, since the best of many sides has also been the luckiest.
  std::vector<TrainingSide> last = {sides[0]};
  for (const TrainingSide& side : {sides[best], variants[variant]}) {
    const std::string name = variant == 0 || side.options == sides[best].options
                                 ? sides[best].name
                                 : sides[best].name + ", " + side.name;
    ENGINE_RETURN_IF_ERROR(AddSide(name, side.plugins, side.options, &last));
  }
  ENGINE_RETURN_IF_ERROR(UntilClear(last.size(), [&](int times) -> Status {
    const char* const title = times == 1 ? "the best beside the defaults" : "with more rounds";
    return Race(title, last, 2 * times * request_.sweep.blocks).status();
  }));
  std::vector<std::string> fragments;
  for (const TrainingSide& side : last) {
    const plugin::PluginSelection& chosen = side.config.plugins();
    fragments.push_back(Fragment({chosen.communicator, chosen.scheduler}));
  }
  const plugin::PluginSelection& usual = sides[0].config.plugins();
  Conclude(usual.communicator.entry.name + ", " + usual.scheduler.entry.name,
           "in steps of the model", fragments);
  return {};
}

Result<ClusterResult> Cluster::Run() {
  ENGINE_RETURN_IF_ERROR(FindHosts());
  ENGINE_RETURN_IF_ERROR(Probe());
  ENGINE_RETURN_IF_ERROR(MeasurePairs());
  ENGINE_RETURN_IF_ERROR(MeasureCollectives());
  ENGINE_RETURN_IF_ERROR(FindTable());
  ENGINE_RETURN_IF_ERROR(request_.model ? CompareTraining() : CompareCommunicators());
  return std::move(result_);
}

}  // namespace

std::vector<std::string> NamesOf(const std::vector<Contender>& contenders) {
  std::vector<std::string> names;
  for (const Contender& contender : contenders) names.push_back(contender.label);
  return names;
}

Result<ClusterResult> MeasureCluster(const ClusterRequest& request, base::RankContext& rank,
                                     const std::function<void(const std::string&)>& progress) {
  return Cluster(request, rank, progress).Run();
}

}  // namespace engine::bench
