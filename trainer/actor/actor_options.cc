#include "trainer/actor/actor_options.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace syncopate::trainer {
namespace {

absl::Status BadOption(const std::string& message) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_STEP_OPTIONS", message);
}

}  // namespace

absl::Status AdamWOptions::Validate() const {
  if (!(learning_rate > 0)) return BadOption(absl::StrCat("learning_rate ", learning_rate, " must be positive"));
  if (!(beta1 >= 0 && beta1 < 1) || !(beta2 >= 0 && beta2 < 1)) {
    return BadOption(absl::StrCat("beta1 ", beta1, " and beta2 ", beta2, " must be in [0, 1)"));
  }
  if (!(eps > 0) || !(weight_decay >= 0) || !(max_grad_norm >= 0)) {
    return BadOption(absl::StrCat("eps ", eps, " must be positive, weight_decay ", weight_decay, " and max_grad_norm ",
                                  max_grad_norm, " not negative"));
  }
  if (!(max_grad_growth == 0 || max_grad_growth > 1)) {
    return BadOption(absl::StrCat("max_grad_growth ", max_grad_growth, " must be more than 1, or 0 for off"));
  }
  if (warmup_updates < 0 || !(final_fraction >= 0 && final_fraction <= 1)) {
    return BadOption(absl::StrCat("warmup_updates ", warmup_updates, " must not be negative, and final_fraction ",
                                  final_fraction, " in [0, 1]"));
  }
  if (supervised_updates < 0 || (supervised_updates > 0 && !(supervised_rate > 0))) {
    return BadOption(absl::StrCat("supervised_updates ", supervised_updates,
                                  " must not be negative, and supervised_rate ", supervised_rate,
                                  " positive with them"));
  }
  if (supervised_updates > 0 && warmup_updates >= supervised_updates) {
    return BadOption(
        absl::StrCat("warmup_updates ", warmup_updates, " must be fewer than supervised_updates ", supervised_updates));
  }
  if (supervised_updates == 0 && schedule != Schedule::kConstant && schedule_updates <= warmup_updates) {
    return BadOption(
        absl::StrCat("schedule_updates ", schedule_updates, " must be more than warmup_updates ", warmup_updates));
  }
  return absl::OkStatus();
}

double LearningRateAt(const AdamWOptions& options, int64_t update) {
  const bool supervised = update <= options.supervised_updates;
  const int64_t warmup = options.supervised_updates > 0 && !supervised ? 0 : options.warmup_updates;
  const double rate = supervised ? options.supervised_rate : options.learning_rate;
  if (!supervised) update -= options.supervised_updates;
  if (update <= warmup) return rate * static_cast<double>(update) / static_cast<double>(warmup);
  if (supervised) {
    const double share =
        static_cast<double>(update - warmup) / static_cast<double>(options.supervised_updates - warmup);
    return rate + (options.learning_rate - rate) * share;
  }
  if (options.schedule == Schedule::kConstant) return rate;
  const double made = static_cast<double>(update - 1 - warmup);
  const double share = std::min(1.0, made / static_cast<double>(options.schedule_updates - warmup));
  const double left = options.schedule == Schedule::kLinear ? 1 - share : (1 + std::cos(M_PI * share)) / 2;
  return rate * (options.final_fraction + (1 - options.final_fraction) * left);
}

}  // namespace syncopate::trainer
