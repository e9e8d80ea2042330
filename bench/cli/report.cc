#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "app/command/command.h"
#include "bench/bench.h"
#include "bench/cli/command.h"
#include "bench/report/run_log.h"

namespace engine {
namespace {

struct ReportFlags {
  std::string metrics, evaluation, folder;
};

Status WriteReport(const ReportFlags& flags) {
  std::string evaluation;
  if (!flags.evaluation.empty()) {
    std::ifstream file(flags.evaluation);
    evaluation.assign(std::istreambuf_iterator<char>(file), {});
    if (evaluation.empty()) {
      return Status::Error(StatusCode::kMissingInput, "cannot read %s", flags.evaluation.c_str());
    }
  }
  ENGINE_ASSIGN_OR_RETURN(const bench::RunLog log, bench::ReadRunLog(flags.metrics));
  ENGINE_ASSIGN_OR_RETURN(const std::string html, bench::RunHtml(log, flags.metrics, evaluation));
  ENGINE_RETURN_IF_ERROR(command::PrepareFolder(flags.folder).WithContext("--out"));
  const std::string path = flags.folder + "/report.html";
  ENGINE_RETURN_IF_ERROR(bench::WriteFile(path, html));
  std::printf("%s\n", path.c_str());
  return {};
}

}  // namespace

void AddReportCommand(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<ReportFlags>();
  CLI::App* report =
      app.add_subcommand("report", "Draw what a run has written of itself, as a page");
  report->add_option("metrics", flags->metrics, "What output.metrics named")
      ->required()
      ->type_name("RUN.jsonl");
  report
      ->add_option("--eval", flags->evaluation,
                   "What `engine eval --json` printed, for its mistakes")
      ->type_name("FILE");
  report->add_option("--out", flags->folder, "Folder to write report.html to")
      ->required()
      ->type_name("DIR");
  report->callback([flags, exit_code] { *exit_code = command::ReportError(WriteReport(*flags)); });
}

}  // namespace engine
