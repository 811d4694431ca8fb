#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/file_system.h"
#include "tools/cli/command.h"
#include "tools/report/load_run.h"
#include "tools/report/report_page.h"

namespace syncopate::cli {
namespace {

constexpr size_t kMaxRuns = 16;

struct ReportArguments {
  std::vector<std::string> run_dirs;
  std::string output;  // "": report.html in the first run directory
};

std::string LocalTime() {
  const auto micros = static_cast<int64_t>(1e6 * Clock::Real()->UnixSeconds());
  return absl::FormatTime("%Y-%m-%d %H:%M", absl::FromUnixMicros(micros), absl::LocalTimeZone());
}

absl::StatusOr<std::string> PageFor(const std::vector<std::string>& run_dirs) {
  std::vector<nlohmann::json> runs;
  for (const std::string& run_dir : run_dirs) {
    SYNCOPATE_ASSIGN_OR_RETURN(const report::RunHistory history, report::LoadRun(FileSystem::Real(), run_dir));
    runs.push_back(history.ToJson());
  }
  return report::MakePage(runs, {.made = LocalTime()});
}

int Report(const ReportArguments& arguments) {
  absl::StatusOr<std::string> page = PageFor(arguments.run_dirs);
  if (!page.ok()) {
    std::cerr << page.status().message() << "\n";
    return 1;
  }
  if (arguments.output == "-") {
    std::cout << *page;
    return std::cout.good() ? 0 : 1;
  }
  const std::string path =
      arguments.output.empty() ? JoinPath(arguments.run_dirs.front(), "report.html") : arguments.output;
  const absl::Status written = WriteFileAtomically(FileSystem::Real(), path, *page);
  if (!written.ok()) {
    std::cerr << written.message() << "\n";
    return 1;
  }
  std::cout << path << "\n";
  return 0;
}

}  // namespace

void AddReportCommand(CLI::App* app, Command* chosen) {
  auto arguments = std::make_shared<ReportArguments>();
  CLI::App* report = app->add_subcommand("report", "Make a page of a run, or of several side by side, to look at");
  report->add_option("RUN_DIR", arguments->run_dirs, "run directories, of runs that are over or go on")
      ->required()
      ->expected(1, static_cast<int>(kMaxRuns))
      ->type_name(kFolderType);
  report
      ->add_option("--output", arguments->output,
                   "where the page goes; report.html in the first RUN_DIR if not given, "
                   "- for standard output")
      ->type_name(kFileType);
  report->footer("Exit codes: 0 done; 1 not.");
  report->callback([=] { *chosen = [=] { return Report(*arguments); }; });
}

}  // namespace syncopate::cli
