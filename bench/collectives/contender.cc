#include "bench/collectives/contender.h"

#include <algorithm>
#include <utility>

#include "app/plugins/catalog.h"
#include "app/plugins/option_value.h"
#include "app/plugins/words.h"
#include "core/plugin/create_object.h"

namespace engine::bench {
namespace {

constexpr int64_t kWaitBeyondMs = 5000;  // after the deadline of the transfer itself

// "tcp.timeout=3" -> the option `timeout` and its text.
Status ApplyOverride(const std::string& override, plugin::PluginChoice* choice) {
  const auto refuse = [&](const std::string& why) {
    return Status::Error(StatusCode::kConfig, "option '%s' of plugin '%s': %s", override.c_str(),
                         choice->entry.name.c_str(), why.c_str());
  };
  const size_t equals = override.find('=');
  if (equals == std::string::npos) return refuse("write it as KEY=VALUE");
  std::string key = override.substr(0, equals);
  const std::string scope = choice->entry.name + ".";
  if (key.starts_with(scope)) key = key.substr(scope.size());
  std::vector<std::string> names;
  for (const OptionSpec* spec : plugins::OptionsOf(choice->entry.options, "")) {
    names.emplace_back(spec->name.view());
    if (names.back() != key) continue;
    auto value = plugins::ParseOptionValue(*spec, override.substr(equals + 1));
    if (!value.ok()) return refuse(value.status().message());
    const Status checked = plugins::CheckOptionValue(*spec, *value);
    if (!checked.ok()) return refuse(checked.message());
    choice->options[names.size() - 1] = std::move(*value);
    return {};
  }
  return refuse("there is no option '" + key + "'" + plugins::DidYouMean(key, names));
}

// The plugin that an override names, or none: "tcp" of "tcp.timeout=3".
std::string ScopeOf(const std::string& override) {
  const std::string key = override.substr(0, override.find('='));
  return key.substr(0, key.find('.') == key.npos ? 0 : key.find('.'));
}

// Overrides for other plugins are left to those inside.
Result<plugin::PluginChoice> ChooseWithInner(const std::string& plugin,
                                             const std::vector<std::string>& overrides,
                                             const std::vector<std::string>& folders) {
  plugin::PluginChoice choice;
  ENGINE_ASSIGN_OR_RETURN(choice.entry, plugins::PluginCatalog::Scan(folders).Find(plugin));
  for (const OptionSpec* spec : plugins::OptionsOf(choice.entry.options, "")) {
    choice.options.push_back(plugins::DefaultOf(*spec));
  }
  for (const std::string& override : overrides) {
    const std::string scope = ScopeOf(override);
    if (!scope.empty() && scope != choice.entry.name) continue;
    ENGINE_RETURN_IF_ERROR(ApplyOverride(override, &choice));
  }
  std::vector<std::string> inside = overrides;
  std::erase_if(inside, [](const std::string& override) { return ScopeOf(override).empty(); });
  for (const plugin::OwnedOption& option : choice.options) {
    if (option.type != OptionType::kPlugin || option.string == choice.entry.name) continue;
    ENGINE_ASSIGN_OR_RETURN(choice.inner.emplace_back(),
                            ChooseWithInner(option.string, inside, folders));
  }
  return choice;
}

}  // namespace

bool Takes(const plugin::PluginChoice& choice, const std::string& override) {
  return ScopeOf(override) == choice.entry.name ||
         std::any_of(choice.inner.begin(), choice.inner.end(),
                     [&](const auto& inner) { return Takes(inner, override); });
}

Result<plugin::PluginChoice> ChoosePlugin(const std::string& plugin,
                                          const std::vector<std::string>& overrides,
                                          const std::vector<std::string>& folders) {
  ENGINE_ASSIGN_OR_RETURN(auto choice, ChooseWithInner(plugin, overrides, folders));
  for (const std::string& override : overrides) {
    if (ScopeOf(override).empty() || Takes(choice, override)) continue;
    ENGINE_RETURN_IF_ERROR(ApplyOverride(override, &choice));  // which says that it is none
  }
  return choice;
}

Result<Contender> FindContender(const std::string& label, const std::string& plugin,
                                std::vector<std::string> overrides,
                                const std::vector<std::string>& folders, bool leaves_others) {
  Contender contender{label, {}};
  if (leaves_others) std::erase_if(overrides, [](const auto& one) { return ScopeOf(one).empty(); });
  ENGINE_ASSIGN_OR_RETURN(contender.choice, (leaves_others ? ChooseWithInner : ChoosePlugin)(
                                                plugin, overrides, folders));
  const plugin::PluginEntry& entry = contender.choice.entry;
  if (entry.kind != PluginKind::kCommunicator) {
    return Status::Error(StatusCode::kPlugin, "plugin '%s' (%s) is no communicator",
                         entry.name.c_str(), entry.path.c_str());
  }
  for (const OptionSpec* spec : plugins::OptionsOf(entry.options, "")) {
    const std::string name(spec->name.view());
    const bool given = std::any_of(overrides.begin(), overrides.end(), [&](const auto& override) {
      return override.starts_with(name + "=") ||
             override.starts_with(entry.name + "." + name + "=");
    });
    if (plugins::IsRequired(*spec) && !given) {
      return Status::Error(StatusCode::kConfig,
                           "communicator '%s' needs its option '%s': set %s.%s=...",
                           entry.name.c_str(), name.c_str(), entry.name.c_str(), name.c_str());
    }
  }
  return contender;
}

Result<std::unique_ptr<LiveContender>> LiveContender::Create(const Contender& contender,
                                                             base::RankContext& rank) {
  std::unique_ptr<LiveContender> live(new LiveContender(rank));
  live->host_ = std::make_unique<plugin::PluginHost>(contender.choice.entry.name, rank,
                                                     &live->device_, nullptr);
  live->host_->Offer(contender.choice);
  ENGINE_ASSIGN_OR_RETURN(live->communicator_,
                          plugin::Create<Communicator>(contender.choice, *live->host_));
  live->traits_ = live->communicator_->traits();
  live->abort_token_ =
      rank.abort.Listen([communicator = live->communicator_.get()](const Status& reason) {
        communicator->Abort(reason);
      });
  return live;
}

LiveContender::~LiveContender() {
  if (abort_token_ != 0) rank_.abort.Forget(abort_token_);
}

Status LiveContender::Run(Transfer transfer) {
  transfer.sequence = sequence_++;
  Work* work = nullptr;
  ENGINE_RETURN_IF_ERROR(communicator_->Submit(transfer, &work));
  const Status status = work->WaitHost(transfer.timeout_ms + kWaitBeyondMs);
  work->Release();
  return status;
}

}  // namespace engine::bench
