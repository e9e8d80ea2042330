#include "tools/conform/parameter_server/members.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <utility>

#include "tools/conform/communicator/absence.h"
#include "tools/conform/parameter_server/served_fixture.h"

namespace engine::conform {
namespace {

constexpr auto kServerTimeout = std::chrono::seconds(20);

}  // namespace

std::optional<UpdateMode> ModeOf(const ServedCase& served) {
  static auto* const known = new std::map<int, std::optional<UpdateMode>>;
  const auto found = known->find(served.servers);
  if (found != known->end()) return found->second;
  std::optional<UpdateMode>& mode = (*known)[served.servers];
  ServedWorld world(served, 1);
  std::vector<std::unique_ptr<Communicator>> servers(static_cast<size_t>(served.servers));
  RunRanks(1 + served.servers, [&](int member) {
    if (member > 0) {
      if (auto made = world.MakeServer(member - 1); made.ok()) {
        servers[static_cast<size_t>(member - 1)] = std::move(*made);
      }
      return;
    }
    const auto rank = world.MakeRank(0, 0);
    ParameterClient* const client = rank.ok() ? Query<ParameterClient>(**rank) : nullptr;
    if (client != nullptr) mode = client->traits().mode;
  });
  return mode;
}

std::string NoParameterServer() {
  if (IsLaunched()) return "its servers are judged where ranks are threads, without a launcher";
  if (ModeOf({0}) || ModeOf({2})) return "";
  return "it does not offer " + std::string(ParameterClient::kId);
}

Members::Members(const ServedCase& served, int ranks, const OptimizerChoice& optimizer)
    : choice_(optimizer), ranks_(static_cast<size_t>(ranks)) {
  world_ = std::make_unique<ServedWorld>(served, ranks);
  std::vector<std::promise<Status>> made(static_cast<size_t>(served.servers));
  for (int index = 0; index < served.servers; ++index) {
    servers_.push_back(std::make_unique<Server>());
    StartServer(index, &made[static_cast<size_t>(index)]);
  }
  std::vector<Status> errors(static_cast<size_t>(ranks));
  RunRanks(ranks, [&](int rank) { errors[static_cast<size_t>(rank)] = MakeRank(rank); });
  for (std::promise<Status>& server : made) errors.push_back(server.get_future().get());
  ok_ = true;
  for (size_t i = 0; i < errors.size(); ++i) {
    if (errors[i].ok()) continue;
    ok_ = false;
    ADD_FAILURE() << (i < ranks_.size() ? "rank " : "server ")
                  << (i < ranks_.size() ? i : i - ranks_.size()) << ": " << errors[i].message();
  }
}

Members::~Members() {
  for (int rank = 0; rank < ranks(); ++rank) Leave(rank);
  for (size_t i = 0; i < servers_.size(); ++i) {
    Server& server = *servers_[i];
    if (server.served.wait_for(kServerTimeout) != std::future_status::ready) {
      ADD_FAILURE() << "server " << i << " goes on although every rank has left";
      server.communicator->Abort(Status::Error(StatusCode::kAborted, "the test gives up"));
    }
    server.thread.join();
    server.communicator.reset();
  }
}

void Members::StartServer(int index, std::promise<Status>* made) {
  Server& server = *servers_[static_cast<size_t>(index)];
  server.served = server.result.get_future().share();
  server.optimizer = choice_.Make();
  server.thread = std::thread([this, index, made, &server] {
    auto communicator = world_->MakeServer(index);
    ParameterServer* serving = nullptr;
    Status status = communicator.status();
    if (communicator.ok()) {
      server.communicator = std::move(*communicator);
      serving = Query<ParameterServer>(*server.communicator);
      if (serving == nullptr) {
        status = Status::Error(StatusCode::kUnsupported, "it offers no ParameterServer");
      }
    }
    made->set_value(status);
    server.result.set_value(serving != nullptr ? serving->Serve(*server.optimizer) : status);
  });
}

Status Members::MakeRank(int rank) {
  Rank& member = At(rank);
  member.optimizer = choice_.Make();
  ENGINE_ASSIGN_OR_RETURN(member.communicator, world_->MakeRank(rank, member.incarnation));
  if (Query<ParameterClient>(*member.communicator) != nullptr) return {};
  return Status::Error(StatusCode::kUnsupported, "it offers no ParameterClient");
}

ParameterClient& Members::client(int rank) {
  return *Query<ParameterClient>(*At(rank).communicator);
}

::testing::AssertionResult Members::OnAll(const std::function<Status(int rank)>& body) {
  if (!ok_) return ::testing::AssertionFailure() << "there is no run";
  std::vector<Status> errors(ranks_.size());
  RunRanks(ranks(), [&](int rank) { errors[static_cast<size_t>(rank)] = body(rank); });
  for (size_t i = 0; i < errors.size(); ++i) {
    if (errors[i].ok()) continue;
    return ::testing::AssertionFailure() << "rank " << i << ": " << errors[i].message();
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult Members::Register(const std::vector<TestBucket>& buckets) {
  const std::vector<ServedBucket> served = ServedBuckets(buckets);
  return OnAll(
      [&](int rank) { return client(rank).Register(served, optimizer(rank), kTimeoutMs); });
}

::testing::AssertionResult Members::Start(const std::vector<TestBucket>& buckets) {
  if (const auto registered = Register(buckets); !registered) return registered;
  return OnAll([&](int rank) -> Status {
    for (const TestBucket& bucket : buckets) {
      const std::vector<float> values = bucket.Values();
      if (rank == 0) {
        ENGINE_RETURN_IF_ERROR(client(0).Store(bucket.key, -1, values.data(), kTimeoutMs));
        continue;
      }
      std::vector<float> loaded;
      ENGINE_RETURN_IF_ERROR(Load(rank, bucket, -1, &loaded));
      const auto same = SameBits(loaded, values);
      if (!same) return Status::Error(StatusCode::kInternal, "load: %s", same.message());
    }
    return {};
  });
}

void Members::Leave(int rank) {
  At(rank).communicator.reset();
}

::testing::AssertionResult Members::Rejoin(int rank) {
  ++At(rank).incarnation;
  const Status status = MakeRank(rank);
  if (status.ok()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "rank " << rank << ": " << status.message();
}

Status Members::Served(int index) {
  const auto& served = servers_[static_cast<size_t>(index)]->served;
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

Work* Members::Submit(int rank, const Transfer& transfer) {
  Work* work = nullptr;
  EXPECT_OK(communicator(rank).Submit(transfer, &work));
  return work;
}

Work* Members::SubmitPush(int rank, const TestBucket& bucket, const std::vector<float>& gradient) {
  return Submit(rank, TransferOf(rank, bucket, gradient.data(), nullptr));
}

Work* Members::SubmitPull(int rank, const TestBucket& bucket, std::vector<float>* value,
                          int64_t timeout_ms) {
  value->resize(static_cast<size_t>(bucket.count()));
  return Submit(rank, TransferOf(rank, bucket, nullptr, value->data(), nullptr, timeout_ms));
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

Status Members::Load(int rank, const TestBucket& bucket, int32_t state, std::vector<float>* data,
                     int64_t timeout_ms) {
  data->assign(static_cast<size_t>(bucket.count()), -77);
  return client(rank).Load(bucket.key, state, data->data(), timeout_ms);
}

Status Finish(Work* work) {
  if (work == nullptr) return Status::Error(StatusCode::kInternal, "it was refused");
  const Status status = work->WaitHost(kTimeoutMs + 5000);
  work->Release();
  return status;
}

}  // namespace engine::conform
