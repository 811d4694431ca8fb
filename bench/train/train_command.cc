#include "bench/train/train_command.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "bench/process/bench_report.h"
#include "bench/train/train_arguments.h"

namespace syncopate::bench {
namespace {

constexpr char kTrainFooter[] =
    "Becomes syncopate-bench-train, which stands beside this program and links libtorch. Weights and tokens are "
    "random. Exit codes: 0 measured; 1 something failed; 2 there is no such case.";

// Replaces this process by the program, whose output and exit code are the command's.
int RunTrain(const TrainArguments& arguments) {
  std::vector<std::string> words = ToWords(arguments);
  words.insert(words.begin(), absl::StrCat(OwnBinaryDir(), "/syncopate-bench-train"));
  std::vector<char*> plain;
  for (std::string& word : words) plain.push_back(word.data());
  plain.push_back(nullptr);
  ::execv(plain[0], plain.data());
  return ReportBenchError(
      Error(absl::StatusCode::kUnavailable, "CANNOT_START",
            absl::StrCat("cannot start ", words[0], ": ", std::strerror(errno),
                         "; `scripts/build.sh PRESET syncopate-bench-train` makes it, which a run does not need")),
      arguments.json);
}

}  // namespace

void AddTrainBenchCommand(CLI::App* bench, std::function<int()>* chosen) {
  auto arguments = std::make_shared<TrainArguments>();
  CLI::App* train = bench->add_subcommand("train", "Training steps at a model's shapes on one device");
  train->footer(kTrainFooter);
  AddTrainOptions(train, arguments.get());
  train->callback([=] { *chosen = [=] { return RunTrain(*arguments); }; });
}

}  // namespace syncopate::bench
