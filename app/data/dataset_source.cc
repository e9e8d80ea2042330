#include "app/data/dataset_source.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "app/data/augment.h"
#include "app/data/batch_loader.h"
#include "core/plugin/create_object.h"
#include "engine/ext/class_names.h"
#include "kit/dataset.h"

namespace engine::data {
namespace {

Status CheckTensor(const std::string& dataset, const SampleTensor& tensor) {
  const bool fits = plugin::CanBe(tensor.shape, tensor.dtype) && tensor.shape.ndim < kMaxDims &&
                    plugin::IsKnown(tensor.content, TensorContent::kBytes);
  if (fits && (tensor.classes == 0 || (tensor.classes > 0 && tensor.dtype == DType::kInt32))) {
    return {};
  }
  return Status::Error(
      StatusCode::kPlugin,
      "%s: the tensor '%s' has a shape, a type, content or classes that cannot be; this is "
      "an error of its plugin",
      dataset.c_str(), std::string(tensor.name).c_str());
}

// A digest is compared, and kept in checkpoints, as a text.
Status CheckInfo(const DatasetInfo& info) {
  const std::string name(info.name);
  const bool is_text = std::ranges::all_of(std::string_view(info.digest),
                                           [](char c) { return c > ' ' && c <= '~'; });
  if (info.inputs.empty() || info.train_samples < 0 || info.held_out_samples < 0 || !is_text) {
    return Status::Error(StatusCode::kPlugin,
                         "%s: samples without input, fewer than none, or a digest that is no text; "
                         "this is an error of its plugin",
                         name.c_str());
  }
  if (info.train_samples == 0) {
    return Status::Error(StatusCode::kBadData, "%s: there is no sample to train on", name.c_str());
  }
  for (const auto& tensors : {info.inputs, info.targets}) {
    for (const SampleTensor& tensor : tensors) ENGINE_RETURN_IF_ERROR(CheckTensor(name, tensor));
  }
  return {};
}

// With the keys that name what it is about: "data.text.path (run.pbtxt:7)".
Status WithKeys(const plugin::PluginChoice& choice, const Status& status) {
  std::string keys;
  for (const plugin::OwnedOption& option : choice.options) {
    const bool is_named =
        option.type == OptionType::kString && option.string.size() > 1 &&  // no delimiter
        std::string_view(status.message()).find(option.string) != std::string::npos;
    if (is_named)
      keys += (keys.empty() ? "data." : ", data.") + choice.entry.name + "." + option.name;
  }
  if (keys.empty()) return status;
  if (!choice.origin.empty()) keys += " (" + choice.origin + ")";
  return status.WithContext("%s", keys.c_str());
}

// What the dataset calls the classes of its targets.
Result<std::map<std::string, std::vector<std::string>>> ReadClassNames(const Dataset& dataset) {
  std::map<std::string, std::vector<std::string>> all;
  const auto* const given = Query<ClassNames>(dataset);
  const auto targets = dataset.info().targets;
  for (uint32_t t = 0; given != nullptr && t < targets.size(); ++t) {
    if (targets[t].classes == 0 || given->ClassName(t, 0).empty()) continue;
    std::vector<std::string>& names = all[std::string(targets[t].name)];
    for (int64_t number = 0; number < targets[t].classes; ++number) {
      names.emplace_back(given->ClassName(t, number));
      const bool good = !names.back().empty() && kit::IsUtf8(names.back()) &&
                        std::ranges::none_of(names.back(), [](uint8_t c) { return c < ' '; });
      if (good) continue;
      return Status::Error(StatusCode::kPlugin,
                           "%s: the name of class %lld of '%s' is empty, not UTF-8 or has control "
                           "characters; this is an error of its plugin",
                           std::string(dataset.info().name).c_str(), static_cast<long long>(number),
                           std::string(targets[t].name).c_str());
    }
  }
  return all;
}

}  // namespace

DatasetSource::DatasetSource(const train::RunConfig& config, base::RankContext& rank)
    : config_(config),
      watch_(rank.watch),
      fill_(watch_ == nullptr ? nullptr
                              : watch_->Describe(config.plugins.dataset.entry.Title(), "Fill")),
      host_(config.plugins.dataset.entry.name, rank, nullptr, nullptr) {}

DatasetSource::~DatasetSource() {
  const base::OpenCall open(watch_, config_.plugins.dataset.entry.Title(), "its destructor");
  dataset_.reset();
}

Status DatasetSource::Make() {
  ENGINE_ASSIGN_OR_RETURN(dataset_,
                          plugin::Create<Dataset>(config_.plugins.dataset, host_, watch_));
  return {};
}

Status DatasetSource::Open() {
  ENGINE_RETURN_IF_ERROR(Make());
  {
    const base::OpenCall open(watch_, config_.plugins.dataset.entry.Title(), "Open");
    const plugin::PluginChoice& choice = config_.plugins.dataset;
    ENGINE_RETURN_IF_ERROR(WithKeys(choice, plugin::Answer(dataset_->Open(config_.seed))
                                                .WithContext("%s", choice.entry.Title().c_str())));
  }
  ENGINE_RETURN_IF_ERROR(CheckInfo(info()));
  ENGINE_ASSIGN_OR_RETURN(class_names_, ReadClassNames(*dataset_));
  if (config_.data.crop_padding == 0 && !config_.data.flip) return {};
  const AugmentOptions options{
      .crop_padding = config_.data.crop_padding, .flip = config_.data.flip, .seed = config_.seed};
  ENGINE_ASSIGN_OR_RETURN(dataset_, AugmentImages(std::move(dataset_), options));
  return {};
}

Result<std::unique_ptr<train::BatchStream>> DatasetSource::Batches(
    const train::BatchRequest& request) {
  return LoadBatches(*dataset_, request,
                     {.seed = config_.seed,
                      .shuffle = request.split == Split::kTrain && config_.data.shuffle,
                      .prefetch = config_.data.prefetch,
                      .plugin = config_.plugins.dataset.entry.Title(),
                      .timeout_ms = base::kCallTimeouts * config_.communication.timeout_ms,
                      .watch = watch_,
                      .fill = fill_});
}

}  // namespace engine::data
