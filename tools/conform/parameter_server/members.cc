#include "tools/conform/parameter_server/members.h"

#include <algorithm>
#include <chrono>
#include <map>

#include "tools/conform/communicator/absence.h"
#include "tools/conform/subject.h"

namespace engine::conform {

constexpr auto kServerTimeout = std::chrono::seconds(20);

std::optional<UpdateMode> ModeOf(const ServedCase& served) {
  static auto* const known = new std::map<int, std::optional<UpdateMode>>;
  const auto [found, is_new] = known->try_emplace(served.servers);
  if (is_new) found->second = Members(served, 1).mode();
  return found->second;
}

std::string NoParameterServer() {
  if (IsLaunched()) return "its servers are judged where ranks are threads, without a launcher";
  if (ModeOf({0}) || ModeOf({2})) return "";
  return "it does not offer " + std::string(ParameterClient::kId);
}

Members::Members(const ServedCase& served, int ranks, const OptimizerChoice& optimizer)
    : server_count_(served.servers),
      choice_(optimizer),
      ranks_(static_cast<size_t>(ranks)),
      servers_(static_cast<size_t>(served.servers)) {
  std::vector<std::promise<Status>> made(servers_.size());
  for (int index = 0; index < server_count_; ++index) {
    StartServer(index, &made[static_cast<size_t>(index)]);
  }
  std::vector<Status> errors(ranks_.size());
  RunRanks(ranks, [&](int rank) { errors[static_cast<size_t>(rank)] = MakeRank(rank); });
  for (std::promise<Status>& server : made) errors.push_back(server.get_future().get());
  const auto failed = std::ranges::find_if(errors, [](const Status& one) { return !one.ok(); });
  if (failed == errors.end()) return;
  const auto at = static_cast<int>(failed - errors.begin());
  error_ = at < ranks ? failed->WithContext("rank %d", at)
                      : failed->WithContext("server %d", at - ranks);
}

Members::~Members() {
  for (int rank = 0; rank < ranks(); ++rank) Leave(rank);
  for (Member& server : servers_) {
    if (server.served.wait_for(kServerTimeout) != std::future_status::ready) {
      ADD_FAILURE() << "server " << &server - servers_.data()
                    << " goes on although every rank has left";
      server.communicator->Abort(Status::Error(StatusCode::kAborted, "the test gives up"));
    }
    server.thread.join();
    server.communicator.reset();
  }
}

Status Members::Make(const RankInfo& info, Member* out) {
  MemoryHost* host = nullptr;
  {
    const std::lock_guard lock(mutex_);
    host = &hosts_.emplace_back(info, store_);
  }
  out->optimizer = choice_.Make();
  ENGINE_ASSIGN_OR_RETURN(out->communicator, UnderTest().plugin.Create<Communicator>(*host));
  const auto& id = info.is_server != 0 ? ParameterServer::kId : ParameterClient::kId;
  if (out->communicator->Query(id, 0) != nullptr) return {};
  return Status::Error(StatusCode::kUnsupported, "it offers no %s", std::string(id).c_str());
}

Status Members::MakeRank(int rank) {
  Member& member = ranks_[static_cast<size_t>(rank)];
  return Make({.rank = rank,
               .world_size = ranks(),
               .local_rank = rank,
               .local_world_size = ranks(),
               .servers = server_count_,
               .incarnation = member.incarnation},
              &member);
}

void Members::StartServer(int index, std::promise<Status>* made) {
  Member& server = servers_[static_cast<size_t>(index)];
  server.served = server.result.get_future().share();
  server.thread = std::thread([this, index, made, &server] {
    Status status = Make({.rank = index,
                          .world_size = ranks(),
                          .local_world_size = ranks(),
                          .servers = server_count_,
                          .is_server = 1},
                         &server);
    made->set_value(status);
    if (status.ok()) {
      status = Query<ParameterServer>(*server.communicator)->Serve(*server.optimizer);
    }
    server.result.set_value(status);
  });
}

std::optional<UpdateMode> Members::mode() {
  const auto& first = ranks_.front().communicator;
  auto* const client = first != nullptr ? Query<ParameterClient>(*first) : nullptr;
  return client != nullptr ? std::optional(client->traits().mode) : std::nullopt;
}

Communicator& Members::communicator(int rank) {
  Must(error_);
  return *ranks_[static_cast<size_t>(rank)].communicator;
}

Status Members::Register(int rank, const std::vector<TestBucket>& buckets) {
  return client(rank).Register(ServedBuckets(buckets), *ranks_[static_cast<size_t>(rank)].optimizer,
                               kTimeoutMs);
}

void Members::OnAll(const std::function<void(int rank)>& body) {
  RunRanks(ranks(), body);
  if (testing::Test::HasFailure()) throw std::runtime_error("the test cannot go on");
}

void Members::RegisterAll(const std::vector<TestBucket>& buckets) {
  OnAll([&](int rank) { Must(Register(rank, buckets)); });
}

std::vector<TestBucket> Members::Start(std::vector<TestBucket> buckets) {
  RegisterAll(buckets);
  OnAll([&](int rank) {
    for (const TestBucket& bucket : buckets) {
      if (rank == 0) Must(Store(bucket, -1, bucket.Values()));
      if (rank != 0) ExpectLoaded(rank, bucket, -1, bucket.Values());
    }
  });
  return buckets;
}

void Members::Rejoin(int rank) {
  ++ranks_[static_cast<size_t>(rank)].incarnation;
  Must(MakeRank(rank));
}

Status Members::Served(int index) {
  const auto& served = servers_[static_cast<size_t>(index)].served;
  if (served.wait_for(kServerTimeout) == std::future_status::ready) return served.get();
  return Status::Error(StatusCode::kTimeout, "server %d goes on", index);
}

Status Members::Begin(int rank, uint64_t step, float learning_rate, float weight) {
  return client(rank).BeginStep({.step = step, .learning_rate = learning_rate, .weight = weight});
}

Transfer Members::TransferOf(int rank, const TestBucket& bucket, const float* send, float* recv,
                             const std::vector<int32_t>* rows, int64_t timeout_ms) {
  if (rows != nullptr) client(rank).SelectRows(bucket.key, *rows);
  return {.kind = send != nullptr ? TransferKind::kPush : TransferKind::kPull,
          .send = send,
          .recv = recv,
          .count = bucket.count(),
          .key = bucket.key,
          .timeout_ms = timeout_ms};
}

Work* Members::SubmitPush(int rank, const TestBucket& bucket, const std::vector<float>& gradient) {
  return MustSubmit(communicator(rank), TransferOf(rank, bucket, gradient.data(), nullptr));
}

Work* Members::SubmitPull(int rank, const TestBucket& bucket, std::vector<float>* value,
                          int64_t timeout_ms) {
  value->resize(static_cast<size_t>(bucket.count()));
  return MustSubmit(communicator(rank),
                    TransferOf(rank, bucket, nullptr, value->data(), nullptr, timeout_ms));
}

Status Members::Push(int rank, const TestBucket& bucket, const std::vector<float>& gradient,
                     const std::vector<int32_t>* rows) {
  return SubmitAndWait(communicator(rank),
                       TransferOf(rank, bucket, gradient.data(), nullptr, rows));
}

Status Members::Pull(int rank, const TestBucket& bucket, std::vector<float>* value,
                     const std::vector<int32_t>* rows) {
  value->resize(static_cast<size_t>(bucket.count()));
  return SubmitAndWait(communicator(rank), TransferOf(rank, bucket, nullptr, value->data(), rows));
}

Status Members::Store(const TestBucket& bucket, int32_t state, const std::vector<float>& data) {
  return client(0).Store(bucket.key, state, data.data(), kTimeoutMs);
}

Status Members::Load(int rank, const TestBucket& bucket, int32_t state, std::vector<float>* data,
                     int64_t timeout_ms) {
  data->assign(static_cast<size_t>(bucket.count()), -77);
  return client(rank).Load(bucket.key, state, data->data(), timeout_ms);
}

void Members::ExpectLoaded(int rank, const TestBucket& bucket, int32_t state,
                           const std::vector<float>& expected) {
  std::vector<float> loaded;
  Must(Load(rank, bucket, state, &loaded));
  EXPECT_TRUE(SameBits(loaded, expected))
      << "rank " << rank << ", bucket " << bucket.key << ", state " << state;
}

Status Finish(Work* work) {
  const Status status = work->WaitHost(kTimeoutMs + 5000);
  work->Release();
  return status;
}

}  // namespace engine::conform
