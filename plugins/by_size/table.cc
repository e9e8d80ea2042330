#include "table.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <sstream>

#include "kit/communicator.h"

namespace engine::by_size {
namespace {

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
  *bytes = std::strtoull(text.c_str(), nullptr, 10) << (10 * (found - std::begin(units)));
  return true;
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

}  // namespace

uint64_t SizeOfAll(const Transfer& transfer, int32_t world_size) noexcept {
  const bool of_all =
      transfer.kind == TransferKind::kReduceScatter || transfer.kind == TransferKind::kAllGather;
  return kit::SizeBytes(transfer) * static_cast<uint64_t>(of_all ? world_size : 1);
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

Status CompareTables(std::string_view table, std::string_view other, int32_t rank) {
  std::vector<std::string> own = Rows(table), theirs = Rows(other);
  const size_t size = std::max(own.size(), theirs.size());
  own.resize(size);
  theirs.resize(size);
  for (size_t i = 0; i < size; ++i) {
    if (own[i] == theirs[i]) continue;
    return Status::Error(StatusCode::kConfig,
                         "by_size.table, row %zu is '%s' and '%s' on rank %d: give all ranks the "
                         "same table",
                         i + 1, own[i].c_str(), theirs[i].c_str(), rank)
        .WithRank(rank);
  }
  return {};
}

}  // namespace engine::by_size
