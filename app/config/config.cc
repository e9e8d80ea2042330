#include "app/config/config.h"

#include <utility>

#include "app/config/checks.h"
#include "app/config/discover.h"
#include "app/config/layers.h"
#include "app/config/print.h"
#include "app/config/schema.h"
#include "core/plugin/load_plugins.h"

namespace engine {
namespace {

constexpr size_t kLargestText = 16 << 20;

Status CheckText(const ConfigRequest& request, const SourceText& source) {
  if (request.text.size() > kLargestText) {
    return Status::Error(StatusCode::kConfig, "%s: %zu bytes are too many for a configuration",
                         request.origin.c_str(), request.text.size());
  }
  const size_t nul = request.text.find('\0');
  if (nul == std::string::npos) return {};
  return source.Error(StatusCode::kConfig, nul, "a NUL byte; is this a text file?");
}

std::vector<PluginEntry> NotShadowed(const PluginCatalog& catalog) {
  std::vector<PluginEntry> entries;
  for (const PluginEntry& entry : catalog.entries()) {
    if (!entry.shadowed) entries.push_back(entry);
  }
  return entries;
}

// The text by the schema of its plugins, with what the command line says.
Result<Document> ParseAll(const ConfigRequest& request, std::shared_ptr<const SourceText> source,
                          const Schema& schema, const Discovery& found) {
  ENGINE_ASSIGN_OR_RETURN(Document document, Document::Parse(std::move(source), schema.prototype(),
                                                             Document::UnknownKeys::kRefuse));
  for (const std::string& argument : request.overrides) {
    ENGINE_RETURN_IF_ERROR(document.Override(argument));
  }
  const std::vector<std::string> from_document(found.plugin_path.size());
  document.SetList("plugin_path", found.plugin_path, from_document);
  document.SetList("plugins", found.plugins, found.flags);
  return document;
}

// The part of the configuration that engine.proto describes.
Result<std::shared_ptr<config::Config>> ToProto(const Document& document) {
  auto proto = std::make_shared<config::Config>();
  if (!proto->ParseFromString(document.message().SerializeAsString())) {
    return Status::Error(StatusCode::kInternal, "the configuration does not survive a copy");
  }
  proto->DiscardUnknownFields();
  return proto;
}

}  // namespace

Result<Config> Config::Load(const ConfigRequest& request) {
  const auto source = std::make_shared<const SourceText>(request.origin, request.text);
  ENGINE_RETURN_IF_ERROR(CheckText(request, *source));
  ENGINE_ASSIGN_OR_RETURN(Discovery found, Discover(request, source));
  ENGINE_ASSIGN_OR_RETURN(const auto schema,
                          Schema::Build(found.chosen, NotShadowed(found.catalog)));
  ENGINE_ASSIGN_OR_RETURN(const Document document, ParseAll(request, source, *schema, found));
  ENGINE_RETURN_IF_ERROR(CheckDocument(document, *schema));

  Config config;
  ENGINE_ASSIGN_OR_RETURN(const auto choices, ReadPluginOptions(document, *schema, found.chosen));
  ENGINE_ASSIGN_OR_RETURN(config.layers_, ReadLayers(document, *schema));
  ENGINE_ASSIGN_OR_RETURN(config.selection_, AssignRoles(choices, found.catalog));
  ENGINE_ASSIGN_OR_RETURN(config.proto_, ToProto(document));
  // Protobuf makes the default of a string when it is first asked for: before ranks are threads.
  (void)config.proto_->model().mlp().activation();
  config.catalog_ = std::make_shared<const PluginCatalog>(std::move(found.catalog));
  config.printed_ = PrintDocument(document, *schema, false);
  config.printed_with_origins_ = PrintDocument(document, *schema, true);
  return config;
}

std::string Config::Print(bool with_origins) const {
  return with_origins ? printed_with_origins_ : printed_;
}

}  // namespace engine
