#include "app/plugins/inner_plugins.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/plugins/group_communicator.h"
#include "app/plugins/option_value.h"
#include "core/plugin/create_object.h"
#include "kit/inner_communicator.h"
#include "kit/rendezvous.h"

namespace engine::plugins {
namespace {

using plugin::PluginChoice;

// What an inner object borrows.
struct Inside {
  Inside(PluginChoice of, const plugin::PluginHost& outer, const std::string& label,
         const base::RankContext& member)
      : choice(std::move(of)), rank(member), host(outer, label, rank) {
    host.Offer(choice);
  }

  const PluginChoice choice;
  base::RankContext rank;
  plugin::PluginHost host;
};

class Inner final : public InnerPluginsBase {
 public:
  Inner(const PluginChoice& outer, plugin::PluginHost& host)
      : outer_(outer), host_(host), rank_(host.rank()) {}

  Status CreateCommunicator(const InnerPlugin& inner, std::span<const int32_t> ranks,
                            Communicator** out) noexcept override {
    return WithoutThrowing([&]() -> Status {
      Group group{.name = std::string(inner.label), .ranks = {ranks.begin(), ranks.end()}};
      base::RankContext rank = rank_;
      if (!ranks.empty()) ENGINE_RETURN_IF_ERROR(Divide(&group, &rank.info));
      ENGINE_ASSIGN_OR_RETURN(Inside * inside,
                              Prepare(inner, PluginKind::kCommunicator, group.name, rank));
      auto made = plugin::Create<Communicator>(inside->choice, inside->host, rank_.watch);
      group.name.insert(0, outer_.entry.name + "/");
      if (!made.ok()) return group.Outside(made.status());
      *out = AroundGroup(std::move(*made), std::move(group)).release();
      return {};
    });
  }

  Status CreateScheduler(const InnerPlugin& inner, Scheduler** out) noexcept override {
    return WithoutThrowing([&]() -> Status {
      ENGINE_ASSIGN_OR_RETURN(
          Inside * inside, Prepare(inner, PluginKind::kScheduler, std::string(inner.label), rank_));
      ENGINE_ASSIGN_OR_RETURN(auto made,
                              plugin::Create<Scheduler>(inside->choice, inside->host, rank_.watch));
      *out = made.release();
      return {};
    });
  }

 private:
  template <typename Call>
  static Status WithoutThrowing(const Call& call) noexcept {
    try {
      return call();
    } catch (const std::exception&) {
      return Status::Error(StatusCode::kResourceExhausted, "no memory for an inner plugin");
    }
  }

  // What this rank is in a group, and which of its ranks are on this host: all of them say so in the
  // store, again in every group.
  Status Divide(Group* group, RankInfo* info) const {
    const RankInfo all = *info;
    std::vector<int32_t>& ranks = group->ranks;
    const auto descends = std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>());
    const auto own = std::find(ranks.begin(), ranks.end(), all.rank);
    if (descends != ranks.end() || own == ranks.end() || all.is_server != 0 || ranks.front() < 0 ||
        ranks.back() >= all.world_size) {
      return Status::Error(StatusCode::kInvalidArgument,
                           "plugin '%s' asked for a communicator of ranks that do not ascend from "
                           "0 to %d, or without rank %d itself",
                           outer_.entry.name.c_str(), all.world_size - 1, all.rank);
    }
    const auto size = static_cast<int32_t>(ranks.size());
    *info = {.rank = static_cast<int32_t>(own - ranks.begin()),
             .world_size = size,
             .local_world_size = 0,
             .rendezvous_timeout_ms = all.rendezvous_timeout_ms,
             .transfer_timeout_ms = all.transfer_timeout_ms};
    const std::string name = kit::HostName(all), key = "host of rank ";
    ENGINE_RETURN_IF_ERROR(kit::SetText(host_, key + std::to_string(all.rank), name));
    for (const int32_t rank : ranks) {
      std::string other;
      const Status got =
          StoreGetString(host_, key + std::to_string(rank), all.rendezvous_timeout_ms, &other);
      if (got.code() == StatusCode::kTimeout) {
        return kit::NotAppeared({rank}, all.world_size, all.rendezvous_timeout_ms);
      }
      ENGINE_RETURN_IF_ERROR(got);
      info->local_rank += other == name && rank < all.rank ? 1 : 0;
      info->local_world_size += other == name ? 1 : 0;
      group->name.append(rank == ranks.front() ? "@" : ",").append(std::to_string(rank));
    }
    info->one_host = info->local_world_size == size ? 1 : 0;
    return {};
  }

  Result<Inside*> Prepare(const InnerPlugin& inner, PluginKind kind, const std::string& label,
                          const base::RankContext& rank) {
    const std::string name(inner.plugin);
    const auto named =
        std::find_if(outer_.inner.begin(), outer_.inner.end(),
                     [&](const PluginChoice& choice) { return choice.entry.name == name; });
    if (named == outer_.inner.end() || named->entry.kind != kind || !IsName(inner.label)) {
      return Status::Error(
          StatusCode::kPlugin,
          "plugin '%s' asked for the %s '%s' with the label '%s': an option of its "
          "own must name one, and a label is [a-z][a-z0-9_]*",
          outer_.entry.name.c_str(), Name(kind), name.c_str(), std::string(inner.label).c_str());
    }
    // What is asked for comes before what the user wrote.
    std::vector<plugin::OwnedOption> given = plugin::Own(inner.options);
    given.insert(given.end(), named->options.begin(), named->options.end());
    PluginChoice choice = *named;
    ENGINE_ASSIGN_OR_RETURN(choice.options, CompleteAttributes(named->entry, "", given));
    inside_.push_back(std::make_unique<Inside>(std::move(choice), host_, label, rank));
    return inside_.back().get();
  }

  const PluginChoice& outer_;
  plugin::PluginHost& host_;
  base::RankContext& rank_;
  std::vector<std::unique_ptr<Inside>> inside_;
};

}  // namespace

std::shared_ptr<InnerPlugins> MakeInner(const PluginChoice& outer, plugin::PluginHost& host) {
  return std::make_shared<Inner>(outer, host);
}

}  // namespace engine::plugins
