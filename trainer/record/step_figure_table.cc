#include "trainer/record/step_figure_table.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace syncopate::trainer {

// The names are public: dashboards, scripts and old runs contain them. Shares of 1 end in _ratio and times in _seconds,
// as Prometheus recommends.
const std::vector<StepFigure>& StepFigureTable() {
  using Figures = StepFigures;
  constexpr auto kCounter = StepFigure::Kind::kCounter;
  static const auto* const table = new std::vector<StepFigure>{
      {"reward_mean", "reward", "", "Mean reward of the last batch", &Figures::reward_mean},
      {"reward_std", "reward", "", "Standard deviation of the rewards of the last batch", &Figures::reward_std},
      {"reward_max", "reward", "", "Highest reward of the last batch", &Figures::reward_max},
      {"reward_min", "reward", "", "Lowest reward of the last batch", &Figures::reward_min},
      {"zero_variance_ratio", "reward", "",
       "Share of the last batch's groups whose rewards were all equal: they teach nothing",
       &Figures::zero_variance_ratio},

      {"loss", "policy", "", "Policy loss of the last step", &Figures::loss},
      {"gradient_norm", "policy", "", "Gradient norm of the last step before clipping", &Figures::gradient_norm},
      {"update_norm", "policy", "",
       "Norm of the change of the weights in the last step's last update; 0 if none was made", &Figures::update_norm},
      {"entropy", "policy", "nats", "Mean entropy of the last batch", &Figures::entropy},
      {"top_probability", "policy", "",
       "Mean probability of the current policy's most likely token over the last batch's tokens",
       &Figures::top_probability},
      {"learning_rate", "policy", "", "Learning rate of the last step's last update; 0 before the first update",
       &Figures::learning_rate},
      {"updates", "policy", "", "Optimizer updates that were made", &Figures::updates, kCounter},
      {"skipped_updates", "policy", "", "Updates that were not made because loss or gradient were not finite",
       &Figures::skipped_updates, kCounter},
      {"clip_ratio", "policy", "", "Share of the last batch's tokens that were clipped", &Figures::clip_ratio},
      {"clip_low_ratio", "policy", "", "Share of the last batch's tokens that were clipped at the lower bound",
       &Figures::clip_low_ratio},
      {"clip_high_ratio", "policy", "", "Share of the last batch's tokens that were clipped at the upper bound",
       &Figures::clip_high_ratio},
      {"dual_clip_ratio", "policy", "", "Share of the last batch's tokens where the second bound of dual clip decided",
       &Figures::dual_clip_ratio},
      {"ratio_max", "policy", "", "Largest probability ratio of the last batch, current to proximal policy",
       &Figures::ratio_max},
      {"ratio_kl", "policy", "nats",
       "Mean of -log of the probability ratio, current to proximal policy, over the last batch", &Figures::ratio_kl},
      {"reference_kl", "policy", "nats",
       "KL divergence of the last batch between current and reference policy, k3; 0 without one",
       &Figures::reference_kl},

      {"staleness_mean", "off_policy", "steps", "Mean staleness of the last batch's tokens", &Figures::staleness_mean},
      {"staleness_max", "off_policy", "steps", "Staleness of the last batch's oldest token", &Figures::staleness_max},
      {"in_flight_staleness_mean", "off_policy", "steps",
       "Mean over the last batch's answers of the steps between the versions of their first and their last token",
       &Figures::in_flight_staleness_mean},
      {"in_queue_staleness_mean", "off_policy", "steps",
       "Mean over the last batch's answers of the steps between the version of their last token and their training",
       &Figures::in_queue_staleness_mean},
      {"mixed_version_ratio", "off_policy", "",
       "Share of the last batch's answers with tokens of more than one version", &Figures::mixed_version_ratio},
      {"kl", "off_policy", "nats", "KL divergence of the last batch between behaviour and proximal policy, k3",
       &Figures::kl},
      {"mismatch_k1", "off_policy", "nats",
       "Mean log-probability of the last batch's tokens under the behaviour policy minus that under the proximal one",
       &Figures::mismatch_k1},
      {"mismatch_max", "off_policy", "nats",
       "Largest distance of a token's log-probabilities under behaviour and proximal policy in the last batch",
       &Figures::mismatch_max},
      {"chi2_token", "off_policy", "",
       "Chi-square divergence of the last batch between behaviour and proximal policy, over tokens",
       &Figures::chi2_token},
      {"chi2_answer", "off_policy", "",
       "Chi-square divergence of the last batch between behaviour and proximal policy, over whole answers",
       &Figures::chi2_answer},
      {"perplexity_ratio", "off_policy", "",
       "Perplexity of the last batch's answers under the proximal policy divided by that under the behaviour policy",
       &Figures::perplexity_ratio},
      {"log_perplexity_gap", "off_policy", "nats",
       "Mean distance of an answer's log-perplexities under behaviour and proximal policy in the last batch",
       &Figures::log_perplexity_gap},
      {"probability_correlation", "off_policy", "",
       "Correlation of the tokens' probabilities under behaviour and proximal policy; 0 where either does not vary",
       &Figures::probability_correlation},
      {"rejected_ratio", "off_policy", "", "Share of the last batch's tokens that the off-policy correction left out",
       &Figures::rejected_ratio},
      {"rejected_low_ratio", "off_policy", "",
       "Share of the last batch's tokens that the off-policy correction left out as they have become less likely",
       &Figures::rejected_low_ratio},
      {"rejected_high_ratio", "off_policy", "",
       "Share of the last batch's tokens that the off-policy correction left out as they have become more likely",
       &Figures::rejected_high_ratio},
      {"weight_mean", "off_policy", "", "Mean importance weight of the last batch", &Figures::weight_mean},
      {"weight_std", "off_policy", "", "Standard deviation of the last batch's importance weights",
       &Figures::weight_std},
      {"weight_min", "off_policy", "", "Smallest importance weight of the last batch", &Figures::weight_min},
      {"weight_max", "off_policy", "", "Largest importance weight of the last batch", &Figures::weight_max},
      {"effective_sample_ratio", "off_policy", "",
       "Effective share of the last batch under its importance weights, 1 on policy", &Figures::effective_sample_ratio},
      {"effective_answer_ratio", "off_policy", "",
       "Effective share of the last batch's answers under the products of their importance weights, without any bound",
       &Figures::effective_answer_ratio},

      {"trained_tokens", "data", "tokens", "Tokens trained by this process", &Figures::trained_tokens, kCounter},
      {"trained_samples", "data", "samples", "Samples trained by this process", &Figures::trained_samples, kCounter},
      {"samples_so_far", "data", "", "Samples that the run has trained from its first step on",
       &Figures::samples_so_far},
      {"tokens_so_far", "data", "", "Answer tokens that the run has trained from its first step on",
       &Figures::tokens_so_far},
      {"response_tokens_mean", "data", "tokens", "Mean answer of the last batch", &Figures::response_tokens_mean},
      {"response_tokens_min", "data", "tokens", "Shortest answer of the last batch", &Figures::response_tokens_min},
      {"response_tokens_max", "data", "tokens", "Longest answer of the last batch", &Figures::response_tokens_max},
      {"truncated_samples", "data", "samples", "Samples that were cut off at the longest answer",
       &Figures::truncated_samples, kCounter},
      {"masked_samples", "data", "samples", "Samples that were cut off and not trained on", &Figures::masked_samples,
       kCounter},
      {"rejected_samples", "data", "samples", "Samples that their environment rejected: they are not trained on",
       &Figures::rejected_samples, kCounter},
      {"turns_mean", "data", "", "Mean turns of the last batch's answers that an environment played; 0 without any",
       &Figures::turns_mean},
      {"environment_seconds_mean", "data", "seconds",
       "Mean time that an environment took for all turns of an answer of the last batch that it played",
       &Figures::environment_seconds_mean},
      {"masked_tokens", "data", "tokens",
       "Tokens that were beyond the staleness bound and not trained on, with staleness.on_deadline: mask",
       &Figures::masked_tokens, kCounter},
      {"trained_token_ratio", "data", "", "Share of the last batch's answer tokens that were trained on",
       &Figures::trained_token_ratio},

      {"rollouters_idle_ratio", "time", "",
       "Share of their time in which rollouters had nothing to decode, during the last step",
       &Figures::rollouters_idle_ratio},
      {"step_seconds", "time", "seconds", "Time from the end of the step before to the end of the last one",
       &Figures::step_seconds},
      {"wait_seconds", "time", "seconds", "Time of the last step without a batch to train on", &Figures::wait_seconds},
      {"forward_backward_seconds", "time", "seconds", "Forward and backward passes of the last step",
       &Figures::forward_backward_seconds},
      {"optimizer_seconds", "time", "seconds", "Optimizer of the last step", &Figures::optimizer_seconds},
      {"proximal_seconds", "time", "seconds",
       "Pass for the proximal policy's log-probabilities in the last step; 0 without one", &Figures::proximal_seconds},
      {"reference_seconds", "time", "seconds",
       "Pass for the reference policy's log-probabilities in the last step; 0 without one",
       &Figures::reference_seconds},
      {"stage_seconds", "time", "seconds", "Staging of the version that the last step made; 0 if it was not published",
       &Figures::stage_seconds},
      {"stage_wait_seconds", "time", "seconds",
       "What the step thread waited for stagings since the step before ended: for that of the version before, beside "
       "which "
       "the last step was made, and where a version must be there at once",
       &Figures::stage_wait_seconds},
      {"export_wait_seconds", "time", "seconds",
       "Time that the step thread waited for copies of the weights for exports, since the step before ended; 0 without "
       "an export",
       &Figures::export_wait_seconds},
      {"parameters_load_seconds", "time", "seconds",
       "Bringing the weights to the device since the step before ended; 0 if they were not moved",
       &Figures::parameters_load_seconds},
      {"parameters_offload_seconds", "time", "seconds",
       "Moving the weights to host memory since the step before ended; 0 if they were not moved",
       &Figures::parameters_offload_seconds},
      {"optimizer_load_seconds", "time", "seconds",
       "Bringing the optimizer's state to the device since the step before ended; 0 if it was not moved",
       &Figures::optimizer_load_seconds},
      {"optimizer_offload_seconds", "time", "seconds",
       "Moving the optimizer's state to host memory since the step before ended; 0 if it was not moved",
       &Figures::optimizer_offload_seconds},
      {"reference_load_seconds", "time", "seconds",
       "Bringing the reference policy to the device since the step before ended; 0 if it was not moved",
       &Figures::reference_load_seconds},
      {"reference_offload_seconds", "time", "seconds",
       "Taking the reference policy off the device since the step before ended; 0 if it was not moved",
       &Figures::reference_offload_seconds},
      {"turn_drain_seconds", "time", "seconds",
       "Until the rollouters had left the device that they share with the trainer (run.share_gpu); 0 without turns",
       &Figures::turn_drain_seconds},
      {"turn_load_seconds", "time", "seconds",
       "Bringing the trainer's state to the shared device for the step; 0 without turns", &Figures::turn_load_seconds},
      {"turn_offload_seconds", "time", "seconds",
       "Taking the trainer's state off the shared device after the step; 0 without turns",
       &Figures::turn_offload_seconds},

      {"memory_allocated_bytes", "memory", "",
       "Bytes that the trainer has of its device in use: tensors, state and send slots; on a CPU those of the whole "
       "heap",
       &Figures::memory_allocated_bytes},
      {"memory_reserved_bytes", "memory", "", "Bytes that it has taken from the device for that",
       &Figures::memory_reserved_bytes},
      {"parameters_device_bytes", "memory", "", "Bytes of the weights that are on the trainer's device after the step",
       &Figures::parameters_device_bytes},
      {"optimizer_device_bytes", "memory", "",
       "Bytes of the optimizer's state that are on the trainer's device after the step",
       &Figures::optimizer_device_bytes},
      {"gradients_device_bytes", "memory", "", "Bytes of the gradients that are on the trainer's device after the step",
       &Figures::gradients_device_bytes},
      {"reference_device_bytes", "memory", "",
       "Bytes of the reference policy that are on the trainer's device after the step",
       &Figures::reference_device_bytes},
      {"parameters_moved_bytes", "memory", "bytes", "Bytes of the weights copied between device and host, both ways",
       &Figures::parameters_moved_bytes, kCounter},
      {"optimizer_moved_bytes", "memory", "bytes",
       "Bytes of the optimizer's state copied between device and host, both ways", &Figures::optimizer_moved_bytes,
       kCounter},
      {"reference_moved_bytes", "memory", "bytes",
       "Bytes of the reference policy copied between device and host, both ways", &Figures::reference_moved_bytes,
       kCounter},
      {"turn_moved_bytes", "memory", "bytes",
       "Bytes of the trainer's state copied to and from the device that it shares with rollouters; 0 without turns",
       &Figures::turn_moved_bytes, kCounter},
      {"cache_flushes", "memory", "", "Times that the trainer's allocator gave its unused memory back",
       &Figures::cache_flushes, kCounter},
  };
  return *table;
}

bool IsOfRollouts(const StepFigure& figure) {
  const absl::string_view group = figure.group;
  return group == "reward" || group == "off_policy";
}

double FigureValue(const StepFigures& figures, const StepFigure& figure) {
  return std::visit([&figures](auto member) { return static_cast<double>(figures.*member); }, figure.member);
}

void SetFigureValue(const StepFigure& figure, double value, StepFigures* figures) {
  if (const auto* real = std::get_if<double StepFigures::*>(&figure.member)) {
    figures->*(*real) = value;
    return;
  }
  constexpr double kLimit = 9e18;  // below 2^63: above, the conversion is undefined
  const bool fits = std::abs(value) < kLimit;
  figures->*std::get<int64_t StepFigures::*>(figure.member) = fits ? std::llround(value) : 0;
}

std::string MetricName(const StepFigure& figure) {
  return absl::StrCat("syncopate_", figure.name, figure.kind == StepFigure::Kind::kCounter ? "_total" : "");
}

std::string MetricHelp(const StepFigure& figure) {
  // A counter's name says what it counts.
  const bool says_unit = figure.kind == StepFigure::Kind::kCounter || *figure.unit == '\0';
  return says_unit ? figure.help : absl::StrCat(figure.help, " (", figure.unit, ")");
}

}  // namespace syncopate::trainer
