// by_size: hands each transfer to one of several communicators, by its kind and size.
//
// What a communicator of the table orders it orders among its own transfers, and the choice follows
// from kind and size alone: one order on all ranks is one order on each of them. They fail together:
// the first failure of a Work aborts all.
#include "engine/plugin.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/ext/shared_memory.h"
#include "engine/ext/wire_progress.h"
#include "kit/communicator.h"
#include "kit/failure.h"
#include "kit/inner_communicator.h"
#include "kit/options.h"
#include "kit/passed_work.h"
#include "kit/rendezvous.h"
#include "table.h"

namespace engine::by_size {
namespace {

constexpr const char* kPlugins[] = {"default", "second", "third", "fourth"};
constexpr size_t kKinds = static_cast<size_t>(TransferKind::kBarrier) + 1;

using Inner = std::map<std::string, std::unique_ptr<Communicator>, std::less<>>;

class Works final : public kit::PassedWorks {
 public:
  explicit Works(kit::Failure::Stop stop) : failure(std::move(stop)) {}

  kit::Failure failure;

 private:
  Status Failed(Status status) noexcept override { return failure.Fail(status); }
};

class BySize final : public CommunicatorBase, WireProgressBase {
 public:
  // The last of `rows` fits all.
  BySize(const RankInfo& ranks, const std::vector<Row>& rows, Inner inner)
      : ranks_(ranks), inner_(std::move(inner)) {
    for (const Row& row : rows) {
      for (size_t kind = 0; kind < kKinds; ++kind) {
        std::vector<Choice>& choices = choices_[kind];
        const bool is_new = choices.empty() || choices.back().up_to < row.up_to;
        if (!row.Fits(static_cast<TransferKind>(kind)) || !is_new) continue;
        choices.push_back({row.up_to, inner_.find(row.plugin)->second.get()});
      }
    }
  }
  ~BySize() override {
    Abort(Status::Error(StatusCode::kAborted, "the communicator was destroyed"));
  }

  // Any of them takes memory that one of them lends.
  void* Query(std::string_view id) noexcept override {
    if (id == WireProgress::kId) return static_cast<WireProgress*>(this);
    if (id != SharedMemory::kId) return nullptr;
    for (const auto& [name, one] : inner_) {
      if (void* const found = one->Query(id, 0)) return found;
    }
    return nullptr;
  }
  uint64_t bytes_moved() const noexcept override {
    uint64_t moved = 0;
    for (const auto& [name, one] : inner_) {
      if (auto* const wire = engine::Query<WireProgress>(*one)) moved += wire->bytes_moved();
    }
    return moved;
  }
  // A kind is there if every communicator has it that may get it.
  CommunicatorTraits traits() const noexcept override {
    CommunicatorTraits all{.dtypes = kit::kAllDTypes, .ordered = 0, .device_memory = 1};
    bool is_bounded = true;
    for (const auto& [name, one] : inner_) {
      const CommunicatorTraits traits = one->traits();
      all.dtypes &= traits.dtypes;
      all.ordered |= traits.ordered;
      all.no_op |= traits.no_op;
      all.device_memory &= traits.device_memory;
      all.max_in_flight += traits.max_in_flight;
      is_bounded = is_bounded && traits.max_in_flight > 0;
    }
    if (!is_bounded) all.max_in_flight = 0;
    for (size_t kind = 0; kind < kKinds; ++kind) {
      const uint32_t bit = Bit(static_cast<TransferKind>(kind));
      const auto has = [bit](const Choice& one) { return one.communicator->traits().kinds & bit; };
      if (std::all_of(choices_[kind].begin(), choices_[kind].end(), has)) all.kinds |= bit;
    }
    return all;
  }
  Status Submit(const Transfer& transfer, Work** out) noexcept override {
    if (works_->failure.raised()) return works_->failure.reason();
    if (!kit::InRange(transfer.kind, TransferKind::kBarrier)) {
      return kit::InvalidTransfer("unknown kind", static_cast<int32_t>(transfer.kind));
    }
    return works_->Submit(Choose(transfer), transfer, out);
  }
  void Abort(const Status& reason) noexcept override { works_->failure.Abort(reason); }

 private:
  struct Choice {
    uint64_t up_to = 0;
    Communicator* communicator = nullptr;
  };

  Communicator& Choose(const Transfer& transfer) const noexcept {
    const uint64_t bytes = SizeOfAll(transfer, ranks_.world_size);
    const Choice* choice = choices_[static_cast<size_t>(transfer.kind)].data();
    while (bytes > choice->up_to) ++choice;
    return *choice->communicator;
  }

  const RankInfo ranks_;
  const Inner inner_;
  std::array<std::vector<Choice>, kKinds> choices_;  // ascending; the last one takes all
  const std::shared_ptr<Works> works_ = std::make_shared<Works>([this](const Status& reason, bool) {
    for (const auto& [name, one] : inner_) one->Abort(reason);
  });
};

// All ranks see the tables of all, so each of them fails.
Status Agree(Host& host, const std::string& table) {
  kit::Rendezvous rendezvous(host);
  ENGINE_RETURN_IF_ERROR(rendezvous.Begin());
  ENGINE_ASSIGN_OR_RETURN(const std::vector<std::string> tables, rendezvous.Exchange(table));
  for (size_t rank = 0; rank < tables.size(); ++rank) {
    ENGINE_RETURN_IF_ERROR(CompareTables(table, tables[rank], static_cast<int32_t>(rank)));
  }
  return {};
}

Result<std::unique_ptr<BySize>> Make(Host& host, const Options& options) {
  std::string table(options.String("table"));
  table.append(";any any ").append(options.String("default"));
  ENGINE_ASSIGN_OR_RETURN(const std::vector<Row> rows, ParseTable(table));
  ENGINE_RETURN_IF_ERROR(Agree(host, table));
  Inner inner;
  for (const Row& row : rows) {
    const auto named = [&](const char* option) { return options.String(option) == row.plugin; };
    if (std::none_of(std::begin(kPlugins), std::end(kPlugins), named)) {
      return Status::Error(StatusCode::kConfig,
                           "by_size.table, row '%s': '%s' is not the value of by_size.default, "
                           "second, third or fourth: set one of them",
                           row.text.c_str(), row.plugin.c_str());
    }
    std::unique_ptr<Communicator>& made = inner[row.plugin];
    if (made) continue;
    ENGINE_ASSIGN_OR_RETURN(made, kit::MakeInner(host, row.plugin, row.plugin));
  }
  return std::make_unique<BySize>(host.rank_info(), rows, std::move(inner));
}

StatusValue Create(Host& host, const Options& options, Object** out) noexcept {
  return kit::CreateCommunicator(host, "by_size", out, [&] { return Make(host, options); });
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = DescribePlugin(
    {.name = "by_size",
     .version = "1.0.0",
     .kind = PluginKind::kCommunicator,
     .doc = "several communicators, of which a table says which one moves a transfer",
     .create = Create},
    NoOps(),
    std::array{
        kit::StringOption("table", "",
                          "rows 'all_reduce 64KiB shm; any 1MiB gloo': operation or any, up to so "
                          "many bytes or any, plugin; the first that fits counts"),
        kit::PluginOption("default", "tcp", "communicator", "for what no row fits"),
        kit::PluginOption("second", "tcp", "communicator", "another one that rows may name"),
        kit::PluginOption("third", "tcp", "communicator", "another one"),
        kit::PluginOption("fourth", "tcp", "communicator", "another one")});

}  // namespace engine::by_size
