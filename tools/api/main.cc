// What is made from and asked of the .proto files when they change. For scripts and tests; no part of a release.
#include <CLI/CLI.hpp>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "base/status.h"
#include "tools/api/compatibility.h"
#include "tools/api/descriptors.h"
#include "tools/api/naming.h"
#include "tools/api/reference.h"

namespace syncopate::api {
namespace {

constexpr int64_t kMaxPageBytes = 4 << 20;

struct Arguments {
  std::string set;     // compiled descriptors
  std::string before;  // older ones
  std::string page;    // Markdown
  bool config = false;
};

absl::Status NoneOf(const std::vector<std::string>& findings, const char* reason, const std::string& summary) {
  if (findings.empty()) return absl::OkStatus();
  for (const std::string& finding : findings) std::cerr << finding << "\n";
  return Error(absl::StatusCode::kFailedPrecondition, reason, absl::StrCat(findings.size(), " ", summary));
}

absl::Status Lint(const Arguments& arguments) {
  SYNCOPATE_ASSIGN_OR_RETURN(const ApiDescriptors api, ApiDescriptors::Read(arguments.set));
  return NoneOf(NamingBreaches(api), "NAMING", "names depart from the rules");
}

absl::Status Breaking(const Arguments& arguments) {
  SYNCOPATE_ASSIGN_OR_RETURN(const ApiDescriptors before, ApiDescriptors::Read(arguments.before));
  SYNCOPATE_ASSIGN_OR_RETURN(const ApiDescriptors after, ApiDescriptors::Read(arguments.set));
  return NoneOf(BreakingChanges(before, after), "BREAKING", "changes break programs that were compiled before them");
}

absl::Status Page(const Arguments& arguments) {
  SYNCOPATE_ASSIGN_OR_RETURN(const ApiDescriptors api, ApiDescriptors::Read(arguments.set));
  SYNCOPATE_ASSIGN_OR_RETURN(const std::string old, ReadFile(FileSystem::Real(), arguments.page, kMaxPageBytes));
  auto page = ReplaceGenerated(old, arguments.config ? ConfigReference(api) : ApiReference(api));
  if (!page.ok()) return Annotate(page.status(), arguments.page);
  return *page == old ? absl::OkStatus() : WriteFileAtomically(FileSystem::Real(), arguments.page, *page);
}

int ExitCode(const absl::Status& status) {
  if (!status.ok()) std::cerr << status.message() << "\n";
  return status.ok() ? 0 : 1;
}

int Main(int argc, char** argv) {
  CLI::App app("Checks of the interface and pages made from it");
  app.require_subcommand(1);
  Arguments arguments;
  std::function<absl::Status(const Arguments&)> chosen;
  auto add = [&](const char* name, const char* what, absl::Status (*command)(const Arguments&)) {
    CLI::App* subcommand = app.add_subcommand(name, what);
    subcommand->add_option("SET", arguments.set, "Descriptor set with source information")->required();
    subcommand->callback([&chosen, command] { chosen = command; });
    return subcommand;
  };
  add("lint", "Names against buf's STANDARD rules", Lint);
  add("breaking", "What a newer set takes away from an older one", Breaking)
      ->add_option("--before", arguments.before, "The older set")
      ->required();
  CLI::App* page = add("page", "Rewrite the generated part of a page", Page);
  page->add_option("PAGE", arguments.page, "Markdown file")->required();
  page->add_flag("--config", arguments.config, "The run configuration, instead of the calls");
  CLI11_PARSE(app, argc, argv);
  return ExitCode(chosen(arguments));
}

}  // namespace
}  // namespace syncopate::api

int main(int argc, char** argv) { return syncopate::api::Main(argc, argv); }
