#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "tools/cli/command.h"
#include "tools/generate/options.h"
#include "tools/run/child_process.h"

namespace syncopate::cli {
namespace {

// Replaces this process by the program that generates. Passes numbers on as text; only defaults are decided here.
int RunGenerate(const generate::GenerateCommandLine& line) {
  const generate::GenerateOptions& options = line.options;
  const std::string program = absl::StrCat(run::OwnBinaryFolder(), "/", generate::kGenerateProgram);
  std::vector<std::string> words = {program, options.folder, absl::StrCat("--max-new-tokens=", options.max_new_tokens),
                                    absl::StrFormat("--temperature=%.17g", options.temperature),
                                    absl::StrCat("--seed=", options.seed)};
  if (!options.prompt_ids.empty()) words.push_back(absl::StrCat("--ids=", absl::StrJoin(options.prompt_ids, ",")));
  if (!options.adapter.empty()) words.push_back(absl::StrCat("--adapter=", options.adapter));
  if (line.json) words.push_back("--json");
  if (line.plain) words.push_back("--plain");
  if (options.prompt_ids.empty()) {  // last, after the options' end, because the text may begin with a dash
    words.push_back("--");
    words.push_back(line.text);
  }
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::execv(program.c_str(), arguments.data());
  std::cerr << program << " cannot be started: " << std::strerror(errno)
            << "; scripts/build.sh release syncopate-generate builds it\n";
  return generate::kGenerateFailed;
}

}  // namespace

void AddGenerateCommand(CLI::App* app, Command* chosen) {
  auto line = std::make_shared<generate::GenerateCommandLine>();
  CLI::App* command = app->add_subcommand("generate", "Answer one prompt with a model directory, in one process");
  generate::AddGenerateOptions(command, line.get());
  command->callback([=] { *chosen = [=] { return RunGenerate(*line); }; });
}

}  // namespace syncopate::cli
