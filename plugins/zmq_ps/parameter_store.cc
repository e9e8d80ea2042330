// A request about parameters stays in its session until it is answered. Registrations, stores and
// pushes are answered as soon as the table has taken them; pulls and loads when the table says so.
// While there is no optimizer there is no table, and everything waits.
//
// A request is refused here for one of two reasons: the table refuses it, or it waits for a rank
// that has left. That is looked for when a rank leaves, and for each request that comes after one
// has left. The table may answer it later all the same: the session takes the first answer, and a
// rank that was refused once asks for nothing more.
#include "parameter_store.h"

#include <algorithm>
#include <cstring>

#include "wire.h"

namespace engine::zmq_ps {
namespace {

template <typename T>
std::vector<T> ArrayOf(const ::zmq::message_t& message) {
  std::vector<T> array(message.size() / sizeof(T));
  if (!array.empty()) std::memcpy(array.data(), message.data(), array.size() * sizeof(T));
  return array;
}

}  // namespace

void ParameterStore::Handle(PendingRequest& pending, Message& message) {
  const Header& header = pending.header;
  pending.body = std::move(message.body);
  pending.rows = std::move(message.rows);
  if (!traits_) {
    sessions_[header.worker].Answer(
        header.request,
        Blame(header.worker,
              "rank %u wants its parameters kept by a server that only adds up: give all members "
              "of the run the same option update of zmq_ps",
              header.worker),
        {});
  } else if (table_) {
    Ask(pending);
    Advance();
  }
}

// The frames go to the table: it keeps a push without copying it. What is not answered here, the
// table answers later.
void ParameterStore::Ask(PendingRequest& pending) {
  const Operation operation = pending.header.spec.operation;
  const bool waits = operation == Operation::kPull || operation == Operation::kLoad;
  const Status status = AskTable(pending);
  if (!status.ok() || !waits) {
    return sessions_[pending.header.worker].Answer(pending.header.request, status, {});
  }
  const auto has_left = [](const Session& session) { return session.left() != nullptr; };
  if (std::any_of(sessions_.begin(), sessions_.end(), has_left)) RefuseLost();
}

Status ParameterStore::AskTable(PendingRequest& pending) {
  Header& header = pending.header;
  const std::vector<int32_t> rows = ArrayOf<int32_t>(pending.rows);
  ::zmq::message_t body = std::move(pending.body);
  switch (header.spec.operation) {
    case Operation::kRegister:
      ENGINE_RETURN_IF_ERROR(table_->Register(header, ArrayOf<ServedSpan>(body)));
      return CheckBuckets(header.worker, header.served.digest);
    case Operation::kStore:
      return table_->Store(header, body);
    case Operation::kPush:
      return table_->Push(header, rows, std::move(body));
    case Operation::kPull:
    case Operation::kLoad:
      return table_->Pull(header, rows);
    default:  // Operation::kLastStep
      header.served.step = std::min(table_->LastStep(header.worker), kMaxStep);
      return CheckBuckets(header.worker, header.served.digest);
  }
}

// Cells are compared one by one, by the table; this finds buckets that only one of two ranks has.
Status ParameterStore::CheckBuckets(uint32_t worker, uint64_t digest) {
  if (!buckets_) buckets_ = {worker, digest};
  if (buckets_->second == digest) return {};
  return Blame(worker,
               "rank %u registers other buckets than rank %u: parameters of a run are the same on "
               "all ranks",
               worker, buckets_->first);
}

// Catches up with what came before there was a table: ranks that left, and requests, of each rank
// in the order of their numbers. Rank 0 stores after all have registered, so their order does not
// matter.
void ParameterStore::Start(Optimizer& optimizer) {
  table_ = std::make_unique<Table>(*traits_, static_cast<uint32_t>(sessions_.size()), optimizer);
  for (uint32_t i = 0; i < sessions_.size(); ++i) {
    if (sessions_[i].left()) table_->Lose(i);
  }
  for (Session& session : sessions_) {
    std::vector<uint64_t> waiting;
    session.ForEachOpen([&](PendingRequest& pending) {
      if (IsServed(pending.header.spec.operation)) waiting.push_back(pending.header.request);
    });
    std::sort(waiting.begin(), waiting.end());  // as the rank asked
    for (const uint64_t request : waiting) Ask(*session.Find(request));
  }
}

// Tasks of several cells may run at once, those of one cell never: see Table.
void ParameterStore::Advance() {
  if (!table_) return;
  while (UpdateTask* const task = table_->NextWork()) {
    offload_.Run(
        task->bytes(), [task] { Run(*task); }, [this, task] { table_->Finished(task); });
  }
  std::vector<PullAnswer> answers;
  table_->TakeReady(&answers);
  for (PullAnswer& answer : answers) {
    sessions_[answer.worker].Answer(answer.request, answer.status, std::move(answer.data));
  }
}

// Why a pull will never be answered: a run in step does not go on without a rank's push, and none
// without the values that rank 0 stores. Others do not miss who is lost.
std::optional<Status> ParameterStore::FindLost(const Header& header) const {
  for (const uint32_t missing : table_->Missing(header)) {
    if (const Status* const left = sessions_[missing].left()) return *left;
  }
  return std::nullopt;
}

void ParameterStore::RefuseLost() {
  if (!table_) return;
  for (Session& session : sessions_) {
    session.ForEachOpen([&](PendingRequest& pending) {
      if (!IsServed(pending.header.spec.operation)) return;
      const auto lost = FindLost(pending.header);
      if (lost) session.Answer(pending.header.request, *lost, {});
    });
  }
}

void ParameterStore::RankLeft(uint32_t worker) {
  if (!table_) return;
  table_->Lose(worker);
  Advance();
  RefuseLost();
}

void ParameterStore::RankJoined(uint32_t worker) {
  if (table_) table_->Join(worker);
}

std::vector<uint32_t> ParameterStore::Missing(const Header& request) const {
  return table_ ? table_->Missing(request) : std::vector<uint32_t>();
}

}  // namespace engine::zmq_ps
