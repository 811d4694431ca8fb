#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/cli/command.h"
#include "tools/run/child_process.h"
#include "tools/serve/options.h"

namespace syncopate::cli {
namespace {

// Replaces this process by the program that serves. Passes numbers on as text; only defaults are decided here.
int RunServe(const serve::ServeOptions& options) {
  const std::string program = absl::StrCat(run::OwnBinaryFolder(), "/", serve::kServeProgram);
  std::vector<std::string> words = {program,
                                    options.folder,
                                    absl::StrCat("--listen=", options.listen),
                                    absl::StrCat("--context=", options.context),
                                    absl::StrCat("--max-sequences=", options.max_sequences),
                                    absl::StrCat("--max-streams=", options.max_streams),
                                    absl::StrCat("--tool-format=", options.tool_format),
                                    absl::StrCat("--threads=", options.threads)};
  if (!options.adapter.empty()) words.push_back(absl::StrCat("--adapter=", options.adapter));
  if (!options.name.empty()) words.push_back(absl::StrCat("--name=", options.name));
  if (!options.token_file.empty()) words.push_back(absl::StrCat("--token-file=", options.token_file));
  if (options.insecure_bind) words.push_back("--insecure-bind");
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::execv(program.c_str(), arguments.data());
  std::cerr << program << " cannot be started: " << std::strerror(errno)
            << "; scripts/build.sh release syncopate-serve builds it\n";
  return serve::kServeFailed;
}

}  // namespace

void AddServeCommand(CLI::App* app, Command* chosen) {
  auto options = std::make_shared<serve::ServeOptions>();
  CLI::App* command = app->add_subcommand("serve", "Serve a model directory to OpenAI's clients");
  serve::AddServeOptions(command, options.get());
  command->callback([=] { *chosen = [=] { return RunServe(*options); }; });
}

}  // namespace syncopate::cli
