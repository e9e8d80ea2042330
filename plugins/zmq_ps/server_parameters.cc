// Requests that are about parameters: between the wire and the table.
#include <algorithm>
#include <cstring>
#include <utility>

#include "describe.h"
#include "server_loop.h"

namespace engine::zmq_ps {
namespace {

// Less is done by the loop itself: handing it over would take longer.
constexpr size_t kRunHereBytes = 32 << 10;

CellId CellOf(const Header& header) {
  return {.unit = header.key, .slice = header.slice};
}

template <typename T>
std::vector<T> ArrayOf(const ::zmq::message_t& message) {
  std::vector<T> array(message.size() / sizeof(T));
  if (!array.empty()) std::memcpy(array.data(), message.data(), array.size() * sizeof(T));
  return array;
}

}  // namespace

// The table looks at what rows hold.
bool ServerLoop::FitsServed(const Header& header, const Message& message) const noexcept {
  const size_t body = message.body.size();
  const bool sparse = header.served.sparse;
  if (message.rows.size() != (sparse ? header.served.rows * sizeof(int32_t) : 0)) return false;
  switch (header.spec.operation) {
    case Operation::kPush:
      return sparse ? body <= header.spec.bytes() : body == header.spec.bytes();
    case Operation::kPull:
      return body == 0;
    case Operation::kStore:
      return body == header.spec.bytes() && !sparse;
    case Operation::kRegister:
      return body > 0 && body % sizeof(ServedSpan) == 0 && body <= settings_.slice_bytes && !sparse;
    default:
      return body == 0 && !sparse;
  }
}

void ServerLoop::HandleServed(const Header& header, Message& message) {
  Worker& worker = workers_[header.worker];
  worker.seen.Mark(header.request);
  auto reply = std::make_unique<ServedReply>();
  reply->header = header;
  reply->deadline = DeadlineIn(header.timeout_ms);
  reply->body = std::move(message.body);
  reply->rows = std::move(message.rows);
  worker.pending[header.request] = {.served = std::move(reply), .heard = Clock::now()};
  Status refusal = failure_;
  const auto rank = static_cast<int32_t>(header.worker);
  if (refusal.ok() && header.world_size != settings_.workers) {
    refusal = Status::Error(StatusCode::kInvalidArgument,
                            "rank %u counts %u ranks, but there are %u: all ranks must belong to "
                            "one run",
                            header.worker, header.world_size, settings_.workers)
                  .WithRank(rank);
  }
  if (refusal.ok() && !settings_.update) {
    refusal = Status::Error(StatusCode::kInvalidArgument,
                            "rank %u wants its parameters kept by a server that only adds up: "
                            "give all members of the run the same option update of zmq_ps",
                            header.worker)
                  .WithRank(rank);
  }
  if (!refusal.ok()) return ReplyServed(header.worker, header.request, refusal, {});
  if (!table_) return;  // until there is one
  AskTable(header.worker, header.request);
  DriveTable();
}

void ServerLoop::AskTable(uint32_t index, uint64_t request) {
  const auto found = workers_[index].pending.find(request);
  if (found == workers_[index].pending.end()) return;
  ServedReply& reply = *found->second.served;
  const ::zmq::message_t rows = std::move(reply.rows);
  ::zmq::message_t body = std::move(reply.body);
  bool open = false;
  const Status status = AskTable(index, reply.header, body, rows, &open);
  if (!status.ok() || !open) return ReplyServed(index, request, status, {});
  const bool anyone_left = std::any_of(workers_.begin(), workers_.end(),
                                       [](const Worker& w) { return w.left.has_value(); });
  if (anyone_left) RefuseHopelessPulls();
}

Status ServerLoop::AskTable(uint32_t index, const Header& header, ::zmq::message_t& body,
                            const ::zmq::message_t& rows, bool* open) {
  const ServedFields& served = header.served;
  const SliceSpec& spec = header.spec;
  const std::vector<int32_t> numbers = ArrayOf<int32_t>(rows);
  switch (spec.operation) {
    case Operation::kRegister:
      ENGINE_RETURN_IF_ERROR(table_->Register(index, {.id = CellOf(header),
                                                      .slices = spec.slices,
                                                      .offset = spec.offset,
                                                      .count = spec.count,
                                                      .total = spec.total,
                                                      .row = served.row,
                                                      .spans = ArrayOf<ServedSpan>(body)}));
      return CheckUnits(index, served.digest);
    case Operation::kStore:
      ENGINE_RETURN_IF_ERROR(table_->Store(index, CellOf(header), served.state, body));
      if (served.state < 0) stored_.insert(CellOf(header));
      return {};
    case Operation::kPush:
      return table_->Push(index, CellOf(header),
                          {.step = served.step,
                           .learning_rate = served.learning_rate,
                           .weight = served.weight,
                           .sparse = served.sparse,
                           .rows = numbers},
                          std::move(body));
    case Operation::kPull:
    case Operation::kLoad:
      *open = true;
      return table_->Pull(index, CellOf(header),
                          {.request = header.request,
                           .step = served.step,
                           .state = served.state,
                           .sparse = served.sparse,
                           .rows = numbers});
    default:  // Operation::kLastStep
      ENGINE_RETURN_IF_ERROR(CheckUnits(index, served.digest));
      workers_[index].pending[header.request].served->header.served.step =
          std::min(table_->LastStep(index), kMaxStep);
      return {};
  }
}

// Cells are compared one by one, by the table; this finds units that only one of two ranks has.
Status ServerLoop::CheckUnits(uint32_t index, uint64_t digest) {
  if (!units_) units_ = {index, digest};
  if (units_->second == digest) return {};
  return Status::Error(StatusCode::kInvalidArgument,
                       "rank %u registers other units than rank %u: parameters of a run are the "
                       "same on all ranks",
                       index, units_->first)
      .WithRank(static_cast<int32_t>(index));
}

void ServerLoop::StartTable(Optimizer& optimizer) {
  table_ = std::make_unique<Table>(TableSettings{.mode = settings_.update->mode,
                                                 .staleness = settings_.update->staleness,
                                                 .workers = settings_.workers,
                                                 .max_cell_bytes = settings_.slice_bytes},
                                   optimizer);
  std::vector<std::pair<uint32_t, uint64_t>> waiting;
  for (uint32_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].left) table_->Lose(i);
  }
  ForOpenServed([&](uint32_t index, uint64_t request, const ServedReply&) {
    waiting.emplace_back(index, request);
  });
  std::sort(waiting.begin(), waiting.end());  // as each worker asked
  for (const auto& [index, request] : waiting) AskTable(index, request);
}

void ServerLoop::DriveTable() {
  while (UpdateTask* const task = table_->NextWork()) {
    if (task->bytes() > kRunHereBytes) {
      pool_->Submit(pool_->Choose(), task);
      continue;
    }
    zmq_ps::Run(*task);
    table_->Finished(task);
  }
  std::vector<PullAnswer> answers;
  table_->TakeReady(&answers);
  for (PullAnswer& answer : answers) {
    ReplyServed(answer.worker, answer.request, answer.status, std::move(answer.data));
  }
}

void ServerLoop::ReplyServed(uint32_t index, uint64_t request, const Status& status,
                             ::zmq::message_t body) {
  const auto found = workers_[index].pending.find(request);
  if (found == workers_[index].pending.end() || !found->second.served) return;
  ServedReply& reply = *found->second.served;
  if (reply.ready) return;
  reply.ready = true;
  reply.refusal = status;
  reply.body = std::move(body);
  reply.rows.rebuild();
  QueueAnswer(index, request);
}

template <typename Visit>
void ServerLoop::ForOpenServed(const Visit& visit) {
  for (uint32_t i = 0; i < workers_.size(); ++i) {
    for (const auto& [request, pending] : workers_[i].pending) {
      if (pending.served && !pending.served->ready) visit(i, request, *pending.served);
    }
  }
}

void ServerLoop::RefuseServed(const Status& reason) {
  ForOpenServed([&](uint32_t index, uint64_t request, const ServedReply& reply) {
    if (table_) table_->Cancel(index, CellOf(reply.header), request);
    ReplyServed(index, request, reason, {});
  });
}

// Why a pull will never be answered: a run in step does not go on without a worker's push, and none
// without the values that rank 0 stores.
std::optional<Status> ServerLoop::Hopeless(uint32_t index, const ServedReply& reply) const {
  const CellId cell = CellOf(reply.header);
  if (workers_[0].left && stored_.count(cell) == 0) return workers_[0].left;
  if (settings_.allows_losses()) return std::nullopt;
  for (const uint32_t missing : table_->Missing(index, cell, reply.header.request)) {
    if (workers_[missing].left) return workers_[missing].left;
  }
  return std::nullopt;
}

void ServerLoop::RefuseHopelessPulls() {
  if (!table_) return;
  ForOpenServed([&](uint32_t index, uint64_t request, const ServedReply& reply) {
    const std::optional<Status> hopeless = Hopeless(index, reply);
    if (!hopeless) return;
    table_->Cancel(index, CellOf(reply.header), request);
    ReplyServed(index, request, *hopeless, {});
  });
}

void ServerLoop::RefuseLatePulls(Clock::time_point now) {
  ForOpenServed([&](uint32_t index, uint64_t request, const ServedReply& reply) {
    if (now < reply.deadline) return;
    const Status reason = WhatAPullWaitsFor(index, reply);
    if (table_) table_->Cancel(index, CellOf(reply.header), request);
    ReplyServed(index, request, reason, {});
  });
}

Status ServerLoop::WhatAPullWaitsFor(uint32_t index, const ServedReply& reply) const {
  const Text what = Describe(reply.header.spec, reply.header.sequence);
  if (!table_) {
    return Status::Error(StatusCode::kTimeout,
                         "%s: this server was given no optimizer in time; its member has not come "
                         "as far as that",
                         what.c_str());
  }
  const auto missing = table_->Missing(index, CellOf(reply.header), reply.header.request);
  if (missing.empty()) {
    return Status::Error(StatusCode::kTimeout,
                         "%s: no values in time; rank 0 has not stored them, or an update takes "
                         "longer",
                         what.c_str());
  }
  return Status::Error(StatusCode::kTimeout, "%s: %s has not pushed step %llu in time",
                       what.c_str(), ListRanks(missing).c_str(),
                       static_cast<unsigned long long>(reply.header.served.step))
      .WithRank(static_cast<int32_t>(missing.front()));
}

}  // namespace engine::zmq_ps
