#include "tools/report/command.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "app/checkpoint/atomic_file.h"
#include "app/command/command.h"
#include "tools/report/run_log.h"
#include "tools/report/run_page.h"

namespace engine::report {
namespace {

struct ReportFlags {
  std::string metrics, evaluation;
  std::string out = ".";
};

Status Report(const ReportFlags& flags) {
  ENGINE_ASSIGN_OR_RETURN(const RunLog log, ReadRunLog(flags.metrics));
  ENGINE_RETURN_IF_ERROR(command::PrepareFolder(flags.out));
  std::string evaluation;
  if (!flags.evaluation.empty()) {
    std::ifstream file(flags.evaluation);
    evaluation.assign(std::istreambuf_iterator<char>(file), {});
    if (evaluation.empty()) {
      return Status::Error(StatusCode::kMissingInput, "cannot read %s", flags.evaluation.c_str());
    }
  }
  const std::string title = std::filesystem::path(flags.metrics).stem();
  ENGINE_ASSIGN_OR_RETURN(const std::string page, RunPage(log, title, evaluation));
  const std::string path = (std::filesystem::path(flags.out) / "report.html").lexically_normal();
  ENGINE_ASSIGN_OR_RETURN(const auto file, checkpoint::AtomicFile::Create(path));
  ENGINE_RETURN_IF_ERROR(file->Write(page.data(), page.size()));
  ENGINE_RETURN_IF_ERROR(file->Commit());
  std::printf("report: %s\n", path.c_str());
  return {};
}

}  // namespace

void AddReportCommand(CLI::App& app, int* exit_code) {
  CLI::App* report = app.add_subcommand("report", "Make a page with the curves of a run");
  const auto flags = std::make_shared<ReportFlags>();
  report->add_option("metrics", flags->metrics, "What the run wrote to output.metrics")
      ->required()
      ->type_name("RUN.jsonl");
  report
      ->add_option("--eval", flags->evaluation,
                   "What `engine eval --json` printed, for its classes and mistakes")
      ->type_name("FILE");
  report->add_option("--out", flags->out, "Folder for report.html")
      ->type_name("DIR")
      ->capture_default_str();
  report->callback([flags, exit_code] { *exit_code = command::ReportError(Report(*flags)); });
}

}  // namespace engine::report
