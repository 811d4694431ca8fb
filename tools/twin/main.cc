// syncopate-twin CONFIG [a.b=c ...]: the run of CONFIG in one process, synchronously. Prints one JSON object a step
// with the digest of the weights, for comparison with metrics.jsonl of a distributed run with max_staleness 0.

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "services/config/run_config.h"
#include "tools/twin/synchronous_loop.h"

namespace syncopate::twin {
namespace {

int Fail(const absl::Status& status, int code) {
  std::fprintf(stderr, "syncopate-twin: %s\n", std::string(status.message()).c_str());
  return code;
}

absl::Status RunTwin(const v1::RunConfig& config) {
  SYNCOPATE_ASSIGN_OR_RETURN(auto loop, SynchronousLoop::Create(config));
  const int64_t every = config.eval().every_steps();
  while (loop->step() < config.run().steps()) {
    SYNCOPATE_ASSIGN_OR_RETURN(auto result, loop->Step());
    std::printf(
        "{\"step\": %lld, \"reward_mean\": %.6f, \"loss\": %.9g, \"entropy\": %.6g, \"zero_variance_ratio\": %.4f, "
        "\"updates\": %lld, \"weights_digest\": \"%016llx\"",
        static_cast<long long>(result.step), result.metrics.reward_mean, result.metrics.loss, result.metrics.entropy,
        result.metrics.zero_variance_ratio, static_cast<long long>(result.metrics.updates),
        static_cast<unsigned long long>(result.weights_digest));
    if (loop->serves() && ((every > 0 && result.step % every == 0) || result.step == config.run().steps())) {
      SYNCOPATE_ASSIGN_OR_RETURN(const std::optional<double> exact, loop->EvaluateExact());
      if (exact.has_value()) std::printf(", \"eval_exact\": %.6f", *exact);
    }
    std::printf("}\n");
    std::fflush(stdout);
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: syncopate-twin CONFIG [section.key=value ...]\n");
    return config::kConfigExitCode;
  }
  absl::StatusOr<v1::RunConfig> config =
      config::LoadRunConfig(argv[1], std::vector<std::string>(argv + 2, argv + argc));
  if (!config.ok()) return Fail(config.status(), config::kConfigExitCode);
  absl::Status status = RunTwin(*config);
  return status.ok() ? 0 : Fail(status, 1);
}

}  // namespace
}  // namespace syncopate::twin

int main(int argc, char** argv) { return syncopate::twin::Main(argc, argv); }
