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
#include "tools/data/worker_tasks.h"
#include "tools/run/child_process.h"

namespace syncopate::cli {
namespace {

// Replaces this process by the program that links Arrow: a hostile file may crash Arrow.
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

int RunList(const data::WorkerTasksRequest& request) {
  const absl::StatusOr<int64_t> rows = data::WriteWorkerTasks(request);
  if (!rows.ok()) {
    std::cerr << "no list was written: " << rows.status().message() << "\n";
    return 1;
  }
  std::cout << *rows << " rows in " << request.output << "\n";
  return 0;
}

}  // namespace

void AddDataCommand(CLI::App* app, Command* chosen) {
  CLI::App* files = app->add_subcommand("data", "Files of prompts");
  files->require_subcommand(1);
  auto arguments = std::make_shared<data::ConvertArguments>();
  CLI::App* convert = files->add_subcommand("convert", "Turn parquet files into one file of JSON lines");
  data::AddConvertOptions(convert, arguments.get());
  convert->callback([=] { *chosen = [=] { return RunConvert(*arguments); }; });

  auto wanted = std::make_shared<data::WorkerTasksRequest>();
  CLI::App* list = files->add_subcommand("list", "Write a Python worker's list of tasks as a file of JSON lines");
  list->footer("Exit codes: 0 done; 1 the list cannot be read or written, with the reason; 2 wrong command line.");
  list->add_option("NAME", wanted->list, "Name of the list, as in @tasks(\"NAME\")")->required();
  list->add_option("--worker,-w", wanted->worker, "Where the worker listens: unix:PATH or host:port")
      ->type_name("ADDRESS")
      ->required();
  list->add_option("--output,-o", wanted->output, "File of JSON lines, which is not there yet")
      ->type_name(kFileType)
      ->required();
  list->add_option("--token-file", wanted->token_file, "File of tokens, whose one of the trainer a host:port is shown")
      ->type_name(kFileType);
  list->callback([=] { *chosen = [=] { return RunList(*wanted); }; });
}

}  // namespace syncopate::cli
