#include "bench/generate/generate_command.h"

#include <unistd.h>

#include <iostream>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "bench/generate/generate_arguments.h"

namespace syncopate::bench {
namespace {

constexpr char kFooter[] =
    "Runs an engine of random weights on the first GPU and prints a JSON object a line as each case ends: prefill (16 "
    "prompts), fixed (decode steps at one context), install (what one costs beside these), mix (256 requests of 100 to "
    "1024 tokens in and out), sync (what a weight sync each --sync-every seconds leaves of the rate), turns (what the "
    "waiting for an "
    "environment leaves of it), sleep (what is given back, and what it takes).";

// Replaces this process by the program, which links libraries that the command line does not.
int RunGenerate(const std::string& program, const GenerateArguments& arguments) {
  const std::vector<std::string> words = {program,
                                          absl::StrCat("--model=", absl::StrJoin(arguments.models, ",")),
                                          absl::StrCat("--batch=", absl::StrJoin(arguments.batches, ",")),
                                          absl::StrCat("--case=", absl::StrJoin(arguments.cases, ",")),
                                          absl::StrCat("--context=", arguments.context),
                                          absl::StrCat("--repeats=", arguments.repeats),
                                          absl::StrCat("--top-p=", arguments.top_p),
                                          absl::StrCat("--top-k=", arguments.top_k),
                                          absl::StrCat("--prefill-tokens=", arguments.prefill_tokens),
                                          absl::StrCat("--sync-seconds=", arguments.sync_seconds),
                                          absl::StrCat("--episodes=", arguments.episodes),
                                          absl::StrCat("--kv-tokens=", arguments.kv_tokens),
                                          absl::StrCat("--turn-seconds=", arguments.turn_seconds),
                                          absl::StrCat("--tensor-parallel=", arguments.tensor_parallel),
                                          absl::StrCat("--lora=", arguments.lora_rank),
                                          absl::StrCat("--install=", arguments.install),
                                          absl::StrCat("--sync-every=", arguments.sync_every),
                                          absl::StrCat("--host-kv-memory=", arguments.host_kv_gib),
                                          absl::StrCat("--answer-tokens=", arguments.answer_tokens),
                                          absl::StrCat("--deterministic=", arguments.deterministic ? "true" : "false"),
                                          absl::StrCat("--profile=", arguments.profile ? "true" : "false")};
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  ::execv(program.c_str(), argv.data());
  std::cerr << "syncopate bench generate: no " << program
            << ", which only a build for GPUs has (scripts/build.sh cuda)\n";
  return 1;
}

}  // namespace

void AddGenerateBenchCommand(CLI::App* bench, const std::string& binary_dir, std::function<int()>* chosen) {
  auto arguments = std::make_shared<GenerateArguments>();
  CLI::App* generate = bench->add_subcommand("generate", "Generation by the whole engine on this host's first GPU");
  generate->footer(kFooter);
  AddGenerateOptions(generate, arguments.get());
  generate->callback([=] {
    *chosen = [=] { return RunGenerate(absl::StrCat(binary_dir, "/syncopate-bench-generate"), *arguments); };
  });
}

}  // namespace syncopate::bench
