// The program behind `syncopate bench train`. See train_arguments.h.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/AllocatorConfig.h>

#include <CLI/CLI.hpp>
#include <iostream>

#include "absl/strings/str_format.h"
#include "bench/train/train_cases.h"
#include "model/device.h"
#include "model/torch_error.h"

namespace syncopate::bench {
namespace {

constexpr int kFailed = 1;
constexpr int kBadCase = 2;

// "policy    qwen2.5-0.5b, 16384 tokens: 146.5 ms, 111834 tokens/s"; for the cases memory and offload also the reserved
// and the moved memory.
std::string ToText(const nlohmann::json& line) {
  const std::string name = line["case"], model = line["model"];
  if (line.contains("step")) {
    return absl::StrFormat("%-9s %s, step %d: %.2f GiB reserved, %.0f tokens/s", name, model, line["step"].get<int>(),
                           line["reserved_gib"].get<double>(), line["tokens_per_second"].get<double>());
  }
  if (line.contains("variant")) {
    return absl::StrFormat("%-9s %s, %s: %.1f ms a step, of which %.1f moved %.0f MiB; at most %.1f GiB", name, model,
                           line["variant"].get<std::string>(), line["ms"].get<double>(),
                           line["moving_ms"].get<double>(), line["moved_mib"].get<double>(),
                           line["peak_gib"].get<double>());
  }
  if (line.contains("copied_gib")) {
    return absl::StrFormat(
        "%-9s %s: a step of %.1f ms takes %.1f with a copy of %.1f GiB, which delays it %.2f ms (the first %.1f) "
        "before "
        "it begins; alone a copy takes %.1f ms, %.1f GiB/s",
        name, model, line["step_ms"].get<double>(), line["saved_step_ms"].get<double>(),
        line["copied_gib"].get<double>(), line["held_ms"].get<double>(), line["first_ms"].get<double>(),
        line["alone_ms"].get<double>(), line["gib_per_second"].get<double>());
  }
  if (line.contains("staged_gib")) {
    return absl::StrFormat(
        "%-9s %s: a step of %.1f ms takes %.1f beside a staging of %.1f GiB, which delays it %.2f ms; the digests "
        "are "
        "there after %.1f ms, alone after %.1f",
        name, model, line["step_ms"].get<double>(), line["staged_step_ms"].get<double>(),
        line["staged_gib"].get<double>(), line["wait_ms"].get<double>(), line["digests_ms"].get<double>(),
        line["alone_ms"].get<double>());
  }
  if (line.contains("exported_gib")) {
    return absl::StrFormat(
        "%-9s %s: a step of %.1f ms takes %.1f beside the copy of an export of %.1f GiB, which delays it %.2f ms "
        "before "
        "it begins; %.1f while the export is written, in %.0f ms",
        name, model, line["step_ms"].get<double>(), line["first_step_ms"].get<double>(),
        line["exported_gib"].get<double>(), line["held_ms"].get<double>(), line.value("beside_step_ms", 0.0),
        line["written_ms"].get<double>());
  }
  std::string text =
      absl::StrFormat("%-9s %s, %d tokens: %.1f ms, %.0f tokens/s, %.0f model TFLOP/s, %.1f GiB at most", name, model,
                      line["tokens"].get<int64_t>(), line["ms"].get<double>(), line["tokens_per_second"].get<double>(),
                      line["model_tflops"].get<double>(), line["allocated_peak_gib"].get<double>());
  if (line["deterministic"].get<bool>()) text += ", deterministic";
  if (line.contains("digest_ms")) {
    text += absl::StrFormat(", digest %.2f ms", line["digest_ms"].get<double>());
  }
  if (line.contains("ranks")) {
    text += absl::StrFormat("; each of %d ranks, %.1f %% of it for what they exchange", line["ranks"].get<int>(),
                            line["exposed_share"].get<double>() * 100);
  }
  for (const nlohmann::json& kernel : line.value("kernels", nlohmann::json::array())) {
    text += absl::StrFormat("\n%10.3f ms %6d x %s", kernel["ms"].get<double>(), kernel["calls"].get<int>(),
                            kernel["name"].get<std::string>());
  }
  return text;
}

absl::Status Run(const TrainArguments& arguments) {
  SYNCOPATE_ASSIGN_OR_RETURN(const model::ModelConfig shape, GetShape(arguments));
  SYNCOPATE_ASSIGN_OR_RETURN(
      const std::string device,
      model::ChooseDevice({.key = "--device", .wanted = arguments.device}, model::ProbeHardware()));
  if (!arguments.allocator.empty()) c10::CachingAllocator::setAllocatorSettings(arguments.allocator);
  const auto tell = [&arguments](const nlohmann::json& line) {
    std::cout << (arguments.json ? line.dump() : ToText(line)) << std::endl;
  };
  std::vector<std::string> usual = {"policy", "program", "logprobs"};
  if (arguments.ranks > 1) usual = {"policy"};
  for (const std::string& name : arguments.cases.empty() ? usual : arguments.cases) {
    SYNCOPATE_RETURN_IF_ERROR(RunTrainCase(name, arguments, shape, at::Device(device), tell));
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  TrainArguments arguments;
  CLI::App app("Training steps at a model's shapes on one device");
  AddTrainOptions(&app, &arguments);
  CLI11_PARSE(app, argc, argv);
  at::NoGradGuard no_grad;
  at::set_num_threads(1);
  absl::Status status;
  try {
    status = Run(arguments);
  } catch (const std::exception& error) {
    status = model::TorchError(error, "the benchmark has failed");
  }
  if (status.ok()) return 0;
  std::cerr << status.message() << "\n";
  return absl::IsInvalidArgument(status) || absl::IsNotFound(status) ? kBadCase : kFailed;
}

}  // namespace
}  // namespace syncopate::bench

int main(int argc, char** argv) { return syncopate::bench::Main(argc, argv); }
