#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/adapter_files.h"
#include "services/config/run_config.h"
#include "tools/cli/command.h"
#include "tools/cli/run_here.h"
#include "trainer/checkpoint/export_checkpoint.h"

namespace syncopate::cli {
namespace {

constexpr char kEvalFooter[] =
    "MODEL is a Hugging Face model directory, or the folder of a checkpoint of a run with model.path, such as "
    "<run.dir>/checkpoints/e1-s20, which is written as one for the time of the evaluation, in float32, with its "
    "adapters "
    "added to their base if it is of adapters. CONFIG says "
    "what is asked: eval.prompts rows of data.eval_files, greedily, and eval.sets. The daemons are those of a run, "
    "which makes no step; figures are in metrics.jsonl of its run directory, and at the end of the output. Exit codes "
    "as those of run.";

struct EvalArguments {
  std::string model;
  std::vector<std::string> words;  // CONFIG and overrides
  bool quiet = false;
  bool json = false;
};

// A folder that is removed with its owner; "" if it could not be made.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "syncopate-eval-XXXXXX").string();
    if (::mkdtemp(pattern.data()) != nullptr) path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

int RefuseModel(const std::string& message) {
  std::cerr << message << "\n";
  return config::kConfigExitCode;
}

int Evaluate(const EvalArguments& arguments, const std::string& program) {
  std::string model = arguments.model;
  std::vector<std::string> overrides(arguments.words.begin() + 1, arguments.words.end());
  TemporaryFolder exported;
  std::error_code ignored;
  if (std::filesystem::exists(std::filesystem::path(model) / "manifest.json", ignored)) {
    if (exported.path().empty())
      return RefuseModel("no temporary folder can be made for the checkpoint's model: set TMPDIR");
    const std::string folder = exported.path() + "/model";
    const bool of_adapters = std::filesystem::exists(std::filesystem::path(model) / model::kAdapterConfigFile, ignored);
    trainer::CheckpointExport options{.model = {.dtype = DType::kFloat32}};
    if (of_adapters) options.adapter = trainer::AdapterExport::kMerged;
    const auto written = trainer::ExportCheckpoint(model, "", folder, options);
    if (!written.ok()) return RefuseModel(absl::StrCat(model, ": ", std::string(written.status().message())));
    model = folder;
    if (of_adapters) overrides.push_back("lora.path=");  // they are in the model now
  }
  overrides.push_back("model.path=" + model);
  overrides.push_back("eval.only=true");
  return RunOnThisMachine({.config = arguments.words.front(),
                           .overrides = std::move(overrides),
                           .quiet = arguments.quiet,
                           .json = arguments.json},
                          program);
}

}  // namespace

void AddEvalCommand(CLI::App* app, const std::string& program, Command* chosen) {
  auto arguments = std::make_shared<EvalArguments>();
  CLI::App* command = app->add_subcommand("eval", "Evaluate a model or a checkpoint by the daemons of a run");
  command->footer(kEvalFooter);
  command->add_option("MODEL", arguments->model, "Model directory, or folder of one checkpoint")
      ->type_name(kFolderType)
      ->required();
  command->add_option("CONFIG", arguments->words, "YAML file, then section.key=value ...")
      ->type_name(kFileOrSettingType)
      ->required();
  CLI::Option* quiet = command->add_flag("--quiet", arguments->quiet, "Print the end only");
  command->add_flag("--json", arguments->json, "Print one JSON object a line")->excludes(quiet);
  command->callback([=] { *chosen = [=] { return Evaluate(*arguments, program); }; });
}

}  // namespace syncopate::cli
