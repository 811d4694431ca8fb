#include <iostream>
#include <memory>
#include <string>

#include "tools/cli/command.h"
#include "tools/cli/completion.h"

namespace syncopate::cli {
namespace {

constexpr char kFooter[] =
    "bash: put `source <(syncopate completion bash)` into ~/.bashrc. zsh: write the script to a file _syncopate in a "
    "folder of $fpath, or put `source <(syncopate completion zsh)` after compinit into ~/.zshrc.";

}  // namespace

void AddCompletionCommand(CLI::App* app, Command* chosen) {
  auto shell = std::make_shared<std::string>();
  CLI::App* completion = app->add_subcommand("completion", "Print a script that completes command lines");
  completion->footer(kFooter);
  completion->add_option("SHELL", *shell, "The shell to complete for")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh"}));
  // Runs after all commands have been added.
  completion->callback([=] {
    *chosen = [=] {
      const auto kind = *shell == "zsh" ? CompletionShell::kZsh : CompletionShell::kBash;
      std::cout << CompletionScript(*app, config::ConfigSchema(), kind);
      return 0;
    };
  });
}

}  // namespace syncopate::cli
