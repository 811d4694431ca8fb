#include <iostream>
#include <memory>
#include <string>

#include "services/config/run_config.h"
#include "tools/cli/command.h"
#include "trainer/checkpoint/export_checkpoint.h"

namespace syncopate::cli {
namespace {

constexpr char kExportFooter[] =
    "CHECKPOINT is a folder such as <run.dir>/checkpoints/e1-s20; the run may be under way. DIR must not be there yet, "
    "or be empty: it gets config.json, the tokenizer's files and the weights as safetensors, in shards of at most 5 "
    "GB. "
    "Exit codes: 0 done; 1 a file cannot be read or written, or is damaged; 2 wrong command line.";

struct ExportArguments {
  std::string checkpoint;
  std::string folder;
  std::string model;
  std::string dtype = "bfloat16";
  bool adapter = false;
  bool merged = false;
  std::string base;
};

int RunExport(const ExportArguments& arguments) {
  const auto dtype = model::ParseExportDType(arguments.dtype);
  if (!dtype.ok()) {
    std::cerr << "--dtype: " << dtype.status().message() << "\n";
    return config::kConfigExitCode;
  }
  const auto written = trainer::ExportCheckpoint(arguments.checkpoint, arguments.model, arguments.folder,
                                                 {.model = {*dtype},
                                                  .adapter = arguments.adapter  ? trainer::AdapterExport::kAdapter
                                                             : arguments.merged ? trainer::AdapterExport::kMerged
                                                                                : trainer::AdapterExport::kNone,
                                                  .base = arguments.base});
  if (!written.ok()) {
    std::cerr << written.status().message() << "\n";
    return 1;
  }
  std::cout << arguments.folder << ": " << written->bytes << " bytes of weights in " << written->files
            << (written->files == 1 ? " file\n" : " files\n");
  return 0;
}

}  // namespace

void AddExportCommand(CLI::App* app, Command* chosen) {
  auto arguments = std::make_shared<ExportArguments>();
  CLI::App* command = app->add_subcommand("export", "Write a checkpoint as a Hugging Face model directory");
  command->footer(kExportFooter);
  command->add_option("CHECKPOINT", arguments->checkpoint, "Folder of one checkpoint")
      ->type_name(kFolderType)
      ->required();
  command->add_option("DIR", arguments->folder, "Folder to make")->type_name(kFolderType)->required();
  command->add_option("--dtype", arguments->dtype, "Of the weights")
      ->capture_default_str()
      ->check(CLI::IsMember({"bfloat16", "float32"}));
  command->add_option("--model", arguments->model, "Folder with config.json; without it, model/ of the run")
      ->type_name(kFolderType);
  CLI::Option* const adapter = command->add_flag(
      "--adapter", arguments->adapter, "Of a run that trains adapters: write them, in float32, as a PEFT directory");
  CLI::Option* const merged = command->add_flag(
      "--merged", arguments->merged, "Of a run that trains adapters: write the model with them added to its weights");
  adapter->excludes(merged);
  command
      ->add_option("--base", arguments->base,
                   "With --merged: model directory of the base; without it, the run's model.path")
      ->type_name(kFolderType)
      ->needs(merged);
  command->callback([=] { *chosen = [=] { return RunExport(*arguments); }; });
}

}  // namespace syncopate::cli
