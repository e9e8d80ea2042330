#include "bench/collectives/sessions.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/deadline.h"

namespace engine::bench {
namespace {

constexpr int kLookMs = 100;  // how often a wait looks whether another rank has failed
constexpr const char* kFailed = "failed";

// Keys of one session. A rank that has failed sets kFailed and destroys what it has made, which
// ends transfers of the others; this store ends their waits for its keys.
class SessionStore final : public base::Store {
 public:
  SessionStore(base::Store& all, std::string prefix) : all_(all), prefix_(std::move(prefix)) {}

  Status Set(std::string_view key, std::string_view value) override {
    return all_.Set(prefix_ + std::string(key), value);
  }
  Result<std::string> Get(std::string_view key, int64_t timeout_ms) override {
    const base::TimePoint deadline = base::DeadlineIn(timeout_ms);
    for (;;) {
      auto found = all_.Get(prefix_ + std::string(key), base::RemainingMs(deadline, kLookMs));
      if (found.ok() || found.status().code() != StatusCode::kTimeout) return found;
      ENGINE_ASSIGN_OR_RETURN(const bool failed, Has(kFailed));
      if (failed) return Status::Error(StatusCode::kAborted, "another rank has failed");
      if (base::Passed(deadline)) return base::StoreTimeout(key, timeout_ms);
    }
  }
  Result<bool> Has(std::string_view key) override { return all_.Has(prefix_ + std::string(key)); }
  Status Post(std::string_view text) override { return all_.Post(text); }
  void Listen(std::function<void(std::string_view)> listener) override {
    all_.Listen(std::move(listener));
  }

 private:
  base::Store& all_;
  const std::string prefix_;
};

// Of all ranks: which error to tell, as "CODE RANK MESSAGE".
std::string FirstCause(const std::vector<std::string>& of_ranks) {
  const auto is_cause = [](const std::string& text) {
    const auto code = static_cast<StatusCode>(std::atoi(text.c_str()));
    return code != StatusCode::kOk && code != StatusCode::kAborted && code != StatusCode::kPeerLost;
  };
  auto found = std::find_if(of_ranks.begin(), of_ranks.end(), is_cause);
  // Only consequences, as when a process outside of the run took a connection away: any but OK.
  if (found == of_ranks.end()) found = std::max_element(of_ranks.begin(), of_ranks.end());
  return *found;
}

}  // namespace

Status Sessions::Try(const RankInfo& info, const std::function<Status(base::RankContext&)>& body,
                     Status* failure) {
  // The signal of the whole run reaches into the session, that of the session stays there.
  Status own;
  if (body != nullptr) {
    SessionStore store(rank_.store, "session" + std::to_string(sessions_) + "/");
    base::AbortSignal abort;
    const int token = rank_.abort.Listen([&](const Status& reason) { abort.Raise(reason); });
    base::RankContext inside{.info = info,
                             .store = store,
                             .abort = abort,
                             .stop_requested = rank_.stop_requested,
                             .log = rank_.log,
                             .watch = rank_.watch};
    own = body(inside);
    rank_.abort.Forget(token);
    if (!own.ok()) ENGINE_RETURN_IF_ERROR(store.Set(kFailed, ""));
  }
  ++sessions_;
  const std::string text = std::to_string(static_cast<int>(own.code())) + " " +
                           std::to_string(own.rank()) + " " + own.message();
  ENGINE_ASSIGN_OR_RETURN(const std::string first, all_.Meet(text, FirstCause));
  char* rest = nullptr;
  const auto code = static_cast<StatusCode>(std::strtol(first.c_str(), &rest, 10));
  const auto blamed = static_cast<int32_t>(std::strtol(rest, &rest, 10));
  *failure =
      code == StatusCode::kOk ? Status() : Status::Error(code, "%s", rest + 1).WithRank(blamed);
  return {};
}

Status Sessions::TakeTurns(int rounds,
                           const std::function<Status(size_t contender, base::RankContext&)>& turn,
                           std::vector<Status>* failures) {
  const size_t contenders = failures->size();
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < contenders; ++i) {
      const size_t contender = round % 2 == 0 ? i : contenders - 1 - i;
      Status& failure = (*failures)[contender];
      if (!failure.ok()) continue;
      ENGINE_RETURN_IF_ERROR(Try(
          rank_.info, [&](base::RankContext& rank) { return turn(contender, rank); }, &failure));
    }
  }
  return {};
}

}  // namespace engine::bench
