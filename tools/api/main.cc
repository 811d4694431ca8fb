// Regenerates the files that are made from the .proto files. For scripts; not part of a release.
#include <CLI/CLI.hpp>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "base/status.h"
#include "tools/api/descriptors.h"
#include "tools/api/reference.h"

namespace syncopate::api {
namespace {

constexpr int64_t kMaxPageBytes = 4 << 20;

struct Arguments {
  std::string set;   // compiled descriptors
  std::string page;  // Markdown
  bool config = false;
};

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
  CLI::App app("Pages made from the interface");
  app.require_subcommand(1);
  Arguments arguments;
  std::function<absl::Status(const Arguments&)> chosen;
  auto add = [&](const char* name, const char* what, absl::Status (*command)(const Arguments&)) {
    CLI::App* subcommand = app.add_subcommand(name, what);
    subcommand->add_option("SET", arguments.set, "Descriptor set with source information")->required();
    subcommand->callback([&chosen, command] { chosen = command; });
    return subcommand;
  };
  CLI::App* page = add("page", "Rewrite the generated part of a page", Page);
  page->add_option("PAGE", arguments.page, "Markdown file")->required();
  page->add_flag("--config", arguments.config, "The run configuration, instead of the calls");
  CLI11_PARSE(app, argc, argv);
  return ExitCode(chosen(arguments));
}

}  // namespace
}  // namespace syncopate::api

int main(int argc, char** argv) { return syncopate::api::Main(argc, argv); }
