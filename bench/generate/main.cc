// syncopate-bench-generate: the whole engine (scheduler, runner, samplers) with random weights on the first GPU; one
// JSON object a line as each case ends. `syncopate bench generate` starts it.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "base/status.h"
#include "bench/generate/engine_cases.h"
#include "bench/generate/generate_arguments.h"
#include "model/torch_error.h"

namespace syncopate::bench {
namespace {

using nlohmann::json;

constexpr int32_t kPrompts = 16;
constexpr int64_t kLongestOfMix = 2048;

absl::Status Print(const std::string& model, const GenerateArguments& arguments, absl::StatusOr<json> line) {
  SYNCOPATE_RETURN_IF_ERROR(line.status());
  (*line)["model"] = model;
  (*line)["tensor_parallel"] = arguments.tensor_parallel;
  (*line)["lora"] = arguments.lora_rank;
  std::printf("%s\n", line->dump().c_str());
  std::fflush(stdout);
  return absl::OkStatus();
}

absl::Status RunModel(const std::string& model, const GenerateArguments& arguments) {
  auto wants = [&](const char* name) {
    return std::find(arguments.cases.begin(), arguments.cases.end(), name) != arguments.cases.end();
  };
  if (arguments.tensor_parallel > 1 && (wants("sync") || wants("turns") || wants("sleep"))) {
    return absl::InvalidArgumentError("the cases sync, turns and sleep are of one rank: leave out --tensor-parallel");
  }
  if (arguments.install == "borrowed" &&
      (arguments.tensor_parallel > 1 || arguments.lora_rank > 0 || wants("install") || wants("sleep"))) {
    return absl::InvalidArgumentError(
        "--install borrowed is for the cases prefill, fixed, mix, short, sync and turns, of one rank without --lora");
  }
  const int32_t most = *std::max_element(arguments.batches.begin(), arguments.batches.end());
  const int64_t context =
      std::max<int64_t>({arguments.context + arguments.context / 2, wants("turns") ? kEpisodeTokens : kLongestOfMix,
                         wants("sync") ? 512 + arguments.answer_tokens : 0});
  SYNCOPATE_ASSIGN_OR_RETURN(const std::unique_ptr<EngineWorld> world,
                             EngineWorld::Create({.model = model,
                                                  .max_sequences = std::max(most, 256),
                                                  .max_context = context,
                                                  .kv_tokens = arguments.kv_tokens,
                                                  .max_prefill_tokens = arguments.prefill_tokens,
                                                  .deterministic = arguments.deterministic,
                                                  .tensor_parallel = arguments.tensor_parallel,
                                                  .lora_rank = arguments.lora_rank,
                                                  .borrowed = arguments.install == "borrowed",
                                                  .host_kv_gib = arguments.host_kv_gib}));
  SYNCOPATE_RETURN_IF_ERROR(Print(model, arguments,
                                  json({{"event", "engine"},
                                        {"create_s", world->create_s()},
                                        {"deterministic", arguments.deterministic},
                                        {"prefill_tokens", world->prefill_tokens()},
                                        {"used_mib", world->used_bytes() >> 20},
                                        {"install", arguments.install},
                                        {"kv_mib", world->engine().kv_bytes() >> 20},
                                        {"kv_tokens", world->engine().kv_tokens()},
                                        {"lent_tokens", world->engine().lent_tokens()},
                                        {"weights_mib", world->engine().weight_bytes() >> 20}})));
  if (wants("prefill")) {
    SYNCOPATE_RETURN_IF_ERROR(Print(model, arguments,
                                    MeasurePrefill(*world, {.prompts = kPrompts,
                                                            .tokens = arguments.context,
                                                            .repeats = arguments.repeats,
                                                            .profile = arguments.profile})));
  }
  for (int32_t batch : arguments.batches) {
    const FixedCase fixed = {.batch = batch,
                             .context = arguments.context,
                             .repeats = arguments.repeats,
                             .top_p = arguments.top_p,
                             .top_k = arguments.top_k,
                             .profile = arguments.profile};
    if (wants("fixed")) SYNCOPATE_RETURN_IF_ERROR(Print(model, arguments, MeasureFixed(*world, fixed)));
    if (wants("install")) SYNCOPATE_RETURN_IF_ERROR(Print(model, arguments, MeasureInstall(*world, fixed)));
    if (wants("sync"))
      SYNCOPATE_RETURN_IF_ERROR(Print(model, arguments,
                                      MeasureSyncs(*world, {.batch = batch,
                                                            .answer_tokens = arguments.answer_tokens,
                                                            .seconds = arguments.sync_seconds,
                                                            .every_seconds = arguments.sync_every})));
    if (wants("turns")) {
      SYNCOPATE_RETURN_IF_ERROR(
          Print(model, arguments, MeasureTurns(*world, batch, arguments.episodes, arguments.turn_seconds)));
    }
  }
  if (wants("short")) SYNCOPATE_RETURN_IF_ERROR(Print(model, arguments, MeasureShort(*world, arguments.repeats)));
  if (wants("mix")) SYNCOPATE_RETURN_IF_ERROR(Print(model, arguments, MeasureMix(*world)));
  return wants("sleep") ? Print(model, arguments, MeasureSleep(*world))
                        : absl::OkStatus();  // last: no weights are served after it
}

absl::Status Run(const GenerateArguments& arguments) {
  for (const std::string& model : arguments.models) {
    try {
      if (absl::Status status = RunModel(model, arguments); !status.ok()) return Annotate(status, model);
    } catch (const std::exception& error) {
      return model::TorchError(error, model);
    }
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace syncopate::bench

int main(int argc, char** argv) {
  syncopate::bench::GenerateArguments arguments;
  CLI::App app;
  syncopate::bench::AddGenerateOptions(&app, &arguments);
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = syncopate::bench::Run(arguments);
  if (status.ok()) return 0;
  std::fprintf(stderr, "syncopate bench generate: %s\n", std::string(status.message()).c_str());
  return 1;
}
