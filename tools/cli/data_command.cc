#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/cli/command.h"
#include "tools/data/options.h"
#include "tools/run/child_process.h"

namespace syncopate::cli {
namespace {

// Becomes the program that links Arrow, which a hostile file may bring down.
int RunConvert(const data::ConvertArguments& arguments) {
  const std::string program = absl::StrCat(run::OwnBinaryFolder(), "/", data::kConvertProgram);
  std::vector<std::string> words = {program, "--output", arguments.output, "--"};
  words.insert(words.end(), arguments.files.begin(), arguments.files.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::execv(program.c_str(), pointers.data());
  std::cerr << program << " cannot be started: " << std::strerror(errno)
            << "; it is built where the pyarrow wheel is: scripts/bootstrap.sh --tests, then scripts/build.sh\n";
  return data::kConvertFailed;
}

}  // namespace

void AddDataCommand(CLI::App* app, Command* chosen) {
  CLI::App* files = app->add_subcommand("data", "Files of prompts");
  files->require_subcommand(1);
  auto arguments = std::make_shared<data::ConvertArguments>();
  CLI::App* convert = files->add_subcommand("convert", "Turn parquet files into one file of JSON lines");
  data::AddConvertOptions(convert, arguments.get());
  convert->callback([=] { *chosen = [=] { return RunConvert(*arguments); }; });
}

}  // namespace syncopate::cli
