#include "core/exec/order.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "core/base/deadline.h"

namespace engine {
namespace {

constexpr size_t kTicketBytes = 20;

template <typename T>
void Append(std::string* text, T value) {
  text->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename T>
T TakeFrom(std::string_view* text) {
  T value;
  std::memcpy(&value, text->data(), sizeof(value));
  text->remove_prefix(sizeof(value));
  return value;
}

std::string Describe(const OrderLog::Issue& issue, const TaskGraph& graph) {
  const bool known = issue.task < graph.tasks.size();
  char text[256];
  std::snprintf(text, sizeof(text), "'%s' (%s, %lld elements of %s)",
                known ? graph.tasks[issue.task].name.c_str() : "a transfer outside of a step",
                Name(static_cast<TransferKind>(issue.kind)), static_cast<long long>(issue.count),
                Name(static_cast<DType>(issue.dtype)));
  return text;
}

}  // namespace

std::string EncodeTicket(const Ticket& ticket) {
  std::string text;
  text.reserve(kTicketBytes);
  Append(&text, ticket.sequence);
  Append(&text, ticket.key);
  Append(&text, ticket.task);
  return text;
}

Result<Ticket> DecodeTicket(std::string_view text) {
  if (text.size() != kTicketBytes) {
    return Status::Error(StatusCode::kBadData, "a ticket of %zu bytes", text.size());
  }
  Ticket ticket;
  ticket.sequence = TakeFrom<uint64_t>(&text);
  ticket.key = TakeFrom<uint64_t>(&text);
  ticket.task = TakeFrom<uint32_t>(&text);
  return ticket;
}

void OrderLog::Add(const Transfer& transfer, uint32_t task) noexcept {
  const Issue issue{.sequence = transfer.sequence,
                    .key = transfer.key,
                    .count = transfer.count,
                    .task = task,
                    .kind = static_cast<int32_t>(transfer.kind),
                    .dtype = static_cast<int32_t>(transfer.dtype),
                    .unit = transfer.unit};
  issues_[count_++ % kCapacity] = issue;
  const uint64_t words[4] = {issue.sequence, issue.key, static_cast<uint64_t>(issue.count),
                             static_cast<uint64_t>(issue.kind)};
  digest_ = XXH3_64bits_withSeed(words, sizeof(words), digest_);
}

std::array<float, OrderLog::kDigestBits> OrderLog::DigestBits() const noexcept {
  std::array<float, kDigestBits> bits;
  for (size_t i = 0; i < kDigestBits; ++i) bits[i] = (digest_ >> i & 1) != 0 ? 1.0f : 0.0f;
  return bits;
}

std::string OrderLog::Encode() const {
  std::string text;
  const uint64_t first = count_ > kCapacity ? count_ - kCapacity : 0;
  for (uint64_t i = first; i < count_; ++i) {
    const Issue& issue = issues_[i % kCapacity];
    Append(&text, issue.sequence);
    Append(&text, issue.key);
    Append(&text, issue.count);
    Append(&text, issue.task);
    Append(&text, issue.kind);
    Append(&text, issue.dtype);
    Append(&text, issue.unit);
  }
  return text;
}

Result<std::vector<OrderLog::Issue>> OrderLog::Decode(std::string_view text) {
  constexpr size_t kIssueBytes = 40;
  if (text.size() % kIssueBytes != 0) {
    return Status::Error(StatusCode::kBadData, "a log of %zu bytes", text.size());
  }
  std::vector<Issue> issues(text.size() / kIssueBytes);
  for (Issue& issue : issues) {
    issue.sequence = TakeFrom<uint64_t>(&text);
    issue.key = TakeFrom<uint64_t>(&text);
    issue.count = TakeFrom<int64_t>(&text);
    issue.task = TakeFrom<uint32_t>(&text);
    issue.kind = TakeFrom<int32_t>(&text);
    issue.dtype = TakeFrom<int32_t>(&text);
    issue.unit = TakeFrom<uint32_t>(&text);
    const bool plausible = issue.kind >= 0 &&
                           issue.kind <= static_cast<int32_t>(TransferKind::kPull) &&
                           issue.dtype >= 0 && issue.dtype <= static_cast<int32_t>(DType::kFloat16);
    if (!plausible) return Status::Error(StatusCode::kBadData, "a log with an unknown transfer");
  }
  return issues;
}

Status CompareLogs(const OrderLog& log, const TaskGraph& graph, const RankInfo& rank, Store& store,
                   int64_t timeout_ms) {
  const auto key = [](int32_t of) { return "order/log/" + std::to_string(of); };
  const std::string own_text = log.Encode();
  ENGINE_RETURN_IF_ERROR(store.Set(key(rank.rank), own_text));
  ENGINE_ASSIGN_OR_RETURN(const std::vector<OrderLog::Issue> own, OrderLog::Decode(own_text));
  const TimePoint deadline = DeadlineIn(timeout_ms);
  for (int32_t other = 0; other < rank.world_size; ++other) {
    if (other == rank.rank) continue;
    auto text = store.Get(key(other), RemainingMs(deadline, static_cast<int>(timeout_ms)));
    if (!text.ok()) continue;  // it did not fail, or is gone
    ENGINE_ASSIGN_OR_RETURN(const std::vector<OrderLog::Issue> theirs, OrderLog::Decode(*text));
    for (const OrderLog::Issue& mine : own) {
      const auto same = std::find_if(theirs.begin(), theirs.end(), [&](const auto& issue) {
        return issue.sequence == mine.sequence;
      });
      if (same == theirs.end() || *same == mine) continue;
      // Told in the same words on both ranks.
      const bool first = rank.rank < other;
      return Status::Error(StatusCode::kPlugin,
                           "ranks disagree on the order of transfers: as number %llu rank %d "
                           "started %s and rank %d %s",
                           static_cast<unsigned long long>(mine.sequence),
                           first ? rank.rank : other, Describe(first ? mine : *same, graph).c_str(),
                           first ? other : rank.rank,
                           Describe(first ? *same : mine, graph).c_str());
    }
  }
  return {};
}

}  // namespace engine
