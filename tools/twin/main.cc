// syncopate-twin [--lag S] CONFIG [a.b=c ...]: the run of CONFIG in one process, synchronously. Prints one JSON object
// a step with the digest of the weights, for comparison with metrics.jsonl of a distributed run with max_staleness 0.
// With --lag it generates with the weights of S steps before, as an asynchronous run does whose every token is that
// old; an evaluation is of those weights, whose step is eval_step.

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "base/status.h"
#include "services/config/run_config.h"
#include "tools/twin/synchronous_loop.h"

namespace syncopate::twin {
namespace {

int Fail(const absl::Status& status, int code) {
  std::fprintf(stderr, "syncopate-twin: %s\n", std::string(status.message()).c_str());
  return code;
}

// The largest staleness of a token that was trained; the last one stands for all above.
int GetOldestAge(const trainer::StepFigures& figures) {
  for (int age = loss::kLossAges - 1; age > 0; --age) {
    if (figures.ages[static_cast<size_t>(age)].tokens > 0) return age;
  }
  return 0;
}

absl::Status RunTwin(const v1::RunConfig& config, int64_t lag) {
  SYNCOPATE_ASSIGN_OR_RETURN(auto loop, SynchronousLoop::Create(config, lag));
  const int64_t every = config.eval().every_steps();
  int64_t evaluated = 0;  // the step that was evaluated last
  while (loop->step() < config.run().steps()) {
    SYNCOPATE_ASSIGN_OR_RETURN(auto result, loop->Step());
    std::printf(
        "{\"step\": %lld, \"reward_mean\": %.6f, \"loss\": %.9g, \"entropy\": %.6g, \"zero_variance_ratio\": %.4f, "
        "\"updates\": %lld, \"oldest_age\": %d, \"weights_digest\": \"%016llx\"",
        static_cast<long long>(result.step), result.metrics.reward_mean, result.metrics.loss, result.metrics.entropy,
        result.metrics.zero_variance_ratio, static_cast<long long>(result.metrics.updates),
        GetOldestAge(result.metrics), static_cast<unsigned long long>(result.weights_digest));
    const int64_t served = loop->served_step();
    const bool due = every > 0 && served > 0 && served % every == 0 && served != evaluated;
    if (loop->serves() && (due || result.step == config.run().steps())) {
      evaluated = served;
      SYNCOPATE_ASSIGN_OR_RETURN(const std::optional<double> exact, loop->EvaluateExact());
      if (exact.has_value()) {
        std::printf(", \"eval_exact\": %.6f, \"eval_step\": %lld", *exact, static_cast<long long>(loop->served_step()));
      }
    }
    std::printf("}\n");
    std::fflush(stdout);
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  int64_t lag = 0;
  const bool has_lag = words.size() >= 2 && words[0] == "--lag";
  const bool good_lag = !has_lag || absl::SimpleAtoi(words[1], &lag);
  if (has_lag) words.erase(words.begin(), words.begin() + 2);
  if (words.empty() || !good_lag) {
    std::fprintf(stderr, "usage: syncopate-twin [--lag STEPS] CONFIG [section.key=value ...]\n");
    return config::kConfigExitCode;
  }
  absl::StatusOr<v1::RunConfig> config =
      config::LoadRunConfig(words.front(), std::vector<std::string>(words.begin() + 1, words.end()));
  if (!config.ok()) return Fail(config.status(), config::kConfigExitCode);
  absl::Status status = RunTwin(*config, lag);
  if (status.ok()) return 0;
  return Fail(status, ErrorReason(status) == "BAD_LAG" ? config::kConfigExitCode : 1);
}

}  // namespace
}  // namespace syncopate::twin

int main(int argc, char** argv) { return syncopate::twin::Main(argc, argv); }
