// A group of some ranks has numbers of its own, which are turned into those of the asking plugin at
// two places: in every Status that leaves the group (Outside), and in the reason of an Abort, which
// goes in and comes back from there (InnerCommunicator::Abort adds the size of the group, which no
// rank of it reaches).
#include "app/plugins/inner_plugins.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/plugins/option_value.h"
#include "core/plugin/create_object.h"
#include "kit/inner_communicator.h"
#include "kit/passed_work.h"
#include "kit/rendezvous.h"

namespace engine::plugins {
namespace {

using plugin::PluginChoice;

class Group final : public kit::Told {
 public:
  std::string name;            // "hier/inside@0,2", for messages
  std::vector<int32_t> ranks;  // of each, what the asking plugin calls it; empty: the same

  Status Outside(const Status& status) const noexcept {
    const auto size = static_cast<int32_t>(ranks.size());
    if (status.ok() || size == 0 || status.rank() < 0) return status;
    if (status.rank() >= size) return status.WithRank(status.rank() - size);
    const int32_t rank = ranks[static_cast<size_t>(status.rank())];
    return status
        .WithContext("rank %d, which is rank %d of '%s'", rank, status.rank(), name.c_str())
        .WithRank(rank);
  }

 private:
  Status Failed(Status status) noexcept override { return Outside(status); }
};

// Of a group. Hears of the end of the run, until its owner deletes it.
class InnerCommunicator final : public CommunicatorBase {
 public:
  InnerCommunicator(std::unique_ptr<Communicator> made, std::shared_ptr<Group> group,
                    base::AbortSignal& abort)
      : made_(std::move(made)),
        group_(std::move(group)),
        works_(group_),
        abort_(abort),
        token_(abort.Listen([this](const Status& reason) { Abort(reason); })) {}
  ~InnerCommunicator() override { abort_.Forget(token_); }

  void* Query(std::string_view id) noexcept override { return made_->Query(id, 0); }
  CommunicatorTraits traits() const noexcept override { return made_->traits(); }
  Status Submit(const Transfer& transfer, Work** out) noexcept override {
    return group_->Outside(works_.Submit(*made_, transfer, out));
  }
  void Abort(const Status& reason) noexcept override {
    const auto size = static_cast<int32_t>(group_->ranks.size());
    made_->Abort(reason.rank() < 0 ? reason : reason.WithRank(reason.rank() + size));
  }

 private:
  const std::unique_ptr<Communicator> made_;
  const std::shared_ptr<Group> group_;
  kit::PassedWorks works_;
  base::AbortSignal& abort_;
  const int token_;
};

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
      const auto group = std::make_shared<Group>();
      group->name = inner.label;
      group->ranks.assign(ranks.begin(), ranks.end());
      base::RankContext rank = rank_;
      if (!ranks.empty()) ENGINE_RETURN_IF_ERROR(Divide(group.get(), &rank.info));
      ENGINE_ASSIGN_OR_RETURN(Inside * inside,
                              Prepare(inner, PluginKind::kCommunicator, group->name, rank));
      auto made = plugin::Create<Communicator>(inside->choice, inside->host, rank_.watch);
      group->name.insert(0, outer_.entry.name + "/");
      if (!made.ok()) return group->Outside(made.status());
      *out = ranks.empty() ? made->release()
                           : new InnerCommunicator(std::move(*made), group, rank_.abort);
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
