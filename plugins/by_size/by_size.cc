// by_size: hands each transfer to one of several communicators, by its kind and size.
//
//   table      := [row {';' row}]           the first row that fits counts
//   row        := operation size plugin     separated by spaces
//   operation  := 'all_reduce' | 'reduce_scatter' | 'all_gather' | 'broadcast' | 'barrier' | 'any'
//   size       := number ['KiB' | 'MiB' | 'GiB'] | 'any'      transfers of up to so many bytes, which
//                 are those of all ranks for a reduce-scatter and an all-gather, as in nccl-tests
//
// What a communicator of the table orders it orders among its own transfers, and the choice follows
// from kind and size alone: one order on all ranks is one order on each of them. They fail together:
// the first failure of a Work aborts all.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/ext/shared_memory.h"
#include "engine/ext/wire_progress.h"
#include "engine/plugin.h"
#include "kit/communicator.h"
#include "kit/failure.h"
#include "kit/inner_communicator.h"
#include "kit/options.h"
#include "kit/passed_work.h"
#include "kit/rendezvous.h"

namespace engine::by_size {
namespace {

constexpr const char* kPlugins[] = {"default", "second", "third", "fourth"};
constexpr size_t kKinds = static_cast<size_t>(TransferKind::kBarrier) + 1;

struct Row {
  std::string text;    // of the table
  uint32_t kinds = 0;  // Bit(TransferKind) | ...
  uint64_t up_to = UINT64_MAX;
  std::string plugin;
};

// 0: no operation. Name() has a dash.
uint32_t KindsOf(std::string name) noexcept {
  if (name == "any") return kit::kCollectives;
  std::replace(name.begin(), name.end(), '_', '-');
  for (int kind = 0; kind <= static_cast<int>(TransferKind::kBarrier); ++kind) {
    if (name == Name(static_cast<TransferKind>(kind))) return Bit(static_cast<TransferKind>(kind));
  }
  return 0;
}

bool ParseSize(const std::string& text, uint64_t* bytes) {
  if (text == "any") return true;
  const size_t digits = text.find_first_not_of("0123456789");
  if (digits == 0 || std::min(digits, text.size()) > 15) return false;
  const std::string unit = digits == text.npos ? "" : text.substr(digits);
  const std::string_view units[] = {"", "KiB", "MiB", "GiB"};
  const auto found = std::find(std::begin(units), std::end(units), unit);
  if (found == std::end(units)) return false;
  const auto shift = 10 * (found - std::begin(units));
  const uint64_t number = std::strtoull(text.c_str(), nullptr, 10);
  *bytes = number << shift;
  return number <= UINT64_MAX >> shift;
}

// Their words with one space between them; an empty row is none.
std::vector<std::string> Rows(std::string_view table) {
  std::vector<std::string> rows;
  std::istringstream text{std::string(table)};
  for (std::string row; std::getline(text, row, ';');) {
    std::istringstream words(row);
    std::string line;
    for (std::string word; words >> word;) line.append(line.empty() ? "" : " ").append(word);
    if (!line.empty()) rows.push_back(line);
  }
  return rows;
}

Result<std::vector<Row>> ParseTable(std::string_view table) {
  std::vector<Row> rows;
  for (const std::string& text : Rows(table)) {
    std::istringstream words(text);
    Row row{.text = text};
    std::string operation, size, rest;
    words >> operation >> size >> row.plugin;
    row.kinds = KindsOf(operation);
    if (row.plugin.empty() || words >> rest || row.kinds == 0 || !ParseSize(size, &row.up_to)) {
      return Status::Error(StatusCode::kConfig,
                           "by_size.table, row %zu '%s' is not 'OPERATION SIZE PLUGIN', such as "
                           "'all_reduce 64KiB shm' or 'any any tcp'",
                           rows.size() + 1, text.c_str());
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

using Inner = std::map<std::string, std::unique_ptr<Communicator>, std::less<>>;

// Of a communicator, which errors name.
class Named final : public kit::Told {
 public:
  Named(std::string plugin, std::shared_ptr<kit::Failure> failure)
      : plugin_(std::move(plugin)), failure_(std::move(failure)) {}

 private:
  Status Failed(Status status) noexcept override {
    return failure_->Fail(status.WithContext("%s", plugin_.c_str()));
  }

  const std::string plugin_;
  const std::shared_ptr<kit::Failure> failure_;
};

class BySize final : public CommunicatorBase, WireProgressBase {
 public:
  // The last of `rows` fits all.
  BySize(const RankInfo& ranks, const std::vector<Row>& rows, Inner inner)
      : ranks_(ranks), inner_(std::move(inner)) {
    for (const auto& [name, one] : inner_)
      works_.try_emplace(name, std::make_shared<Named>(name, failure_));
    for (const Row& row : rows) {
      for (size_t kind = 0; kind < kKinds; ++kind) {
        std::vector<Choice>& choices = choices_[kind];
        const bool is_new = choices.empty() || choices.back().up_to < row.up_to;
        if ((row.kinds & Bit(static_cast<TransferKind>(kind))) == 0 || !is_new) continue;
        choices.push_back({row.up_to, inner_.at(row.plugin).get(), &works_.at(row.plugin)});
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
    CommunicatorTraits all{
        .dtypes = kit::kAllDTypes, .ordered = 0, .max_in_flight = 1, .device_memory = 1};
    for (const auto& [name, one] : inner_) {
      const CommunicatorTraits traits = one->traits();
      all.dtypes &= traits.dtypes;
      all.ordered |= traits.ordered;
      all.no_op |= traits.no_op;
      all.device_memory &= traits.device_memory;
      // 0, no bound, is the largest.
      all.max_in_flight = std::max(all.max_in_flight - 1, traits.max_in_flight - 1) + 1;
    }
    for (size_t kind = 0; kind < kKinds; ++kind) {
      const uint32_t bit = Bit(static_cast<TransferKind>(kind));
      const auto has = [bit](const Choice& one) { return one.communicator->traits().kinds & bit; };
      if (std::all_of(choices_[kind].begin(), choices_[kind].end(), has)) all.kinds |= bit;
    }
    return all;
  }
  Status Submit(const Transfer& transfer, Work** out) noexcept override {
    if (failure_->raised()) return failure_->reason();
    if (!kit::InRange(transfer.kind, TransferKind::kBarrier)) {
      return kit::InvalidTransfer("unknown kind", static_cast<int32_t>(transfer.kind));
    }
    const Choice& choice = Choose(transfer);
    return choice.works->Submit(*choice.communicator, transfer, out);
  }
  void Abort(const Status& reason) noexcept override { failure_->Abort(reason); }

 private:
  struct Choice {
    uint64_t up_to = 0;
    Communicator* communicator = nullptr;
    kit::PassedWorks* works = nullptr;
  };

  const Choice& Choose(const Transfer& transfer) const noexcept {
    const bool is_of_all =
        transfer.kind == TransferKind::kReduceScatter || transfer.kind == TransferKind::kAllGather;
    const uint64_t parts = is_of_all ? static_cast<uint64_t>(ranks_.world_size) : 1;
    const uint64_t bytes = parts * kit::SizeBytes(transfer);
    const Choice* choice = choices_[static_cast<size_t>(transfer.kind)].data();
    while (bytes > choice->up_to) ++choice;
    return *choice;
  }

  const RankInfo ranks_;
  const Inner inner_;
  std::array<std::vector<Choice>, kKinds> choices_;  // ascending; the last one takes all
  const std::shared_ptr<kit::Failure> failure_ =
      std::make_shared<kit::Failure>([this](const Status& reason, bool) {
        for (const auto& [name, one] : inner_) one->Abort(reason);
      });
  std::map<std::string, kit::PassedWorks> works_;
};

// All ranks see the tables of all, so each of them fails, with the first row that differs.
Status Agree(Host& host, const std::string& table) {
  kit::Rendezvous rendezvous(host);
  ENGINE_RETURN_IF_ERROR(rendezvous.Begin());
  ENGINE_ASSIGN_OR_RETURN(const std::vector<std::string> tables, rendezvous.Exchange(table));
  for (size_t rank = 0; rank < tables.size(); ++rank) {
    std::vector<std::string> own = Rows(table), theirs = Rows(tables[rank]);
    own.resize(std::max(own.size(), theirs.size()));
    theirs.resize(own.size());
    const auto [row, other] = std::mismatch(own.begin(), own.end(), theirs.begin());
    if (row == own.end()) continue;
    return Status::Error(StatusCode::kConfig,
                         "by_size.table, row %td is '%s' and '%s' on rank %zu: give all ranks the "
                         "same table",
                         row - own.begin() + 1, row->c_str(), other->c_str(), rank)
        .WithRank(static_cast<int32_t>(rank));
  }
  return {};
}

Result<std::unique_ptr<BySize>> Make(Host& host, const Options& options) {
  std::string table(options.String("table"));
  table.append(";any any ").append(options.String("default"));
  ENGINE_RETURN_IF_ERROR(Agree(host, table));
  ENGINE_ASSIGN_OR_RETURN(const std::vector<Row> rows, ParseTable(table));
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
