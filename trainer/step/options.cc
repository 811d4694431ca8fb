#include "trainer/step/options.h"

#include "absl/strings/str_cat.h"

namespace syncopate::trainer {
namespace {

absl::Status BadOption(const std::string& message) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_STEP_OPTIONS", message);
}

}  // namespace

absl::Status PolicyLossOptions::Validate() const {
  if (!(clip_low > 0 && clip_low < 1)) return BadOption(absl::StrCat("clip_low ", clip_low, " must be in (0, 1)"));
  if (!(clip_high > 0)) return BadOption(absl::StrCat("clip_high ", clip_high, " must be positive"));
  if (!(mis_low >= 0 && mis_low <= 1 && mis_high >= 1)) {
    return BadOption(absl::StrCat("the band [", mis_low, ", ", mis_high, "] must contain 1"));
  }
  if (!(tis_cap >= 1)) return BadOption(absl::StrCat("tis_cap ", tis_cap, " must be at least 1"));
  return absl::OkStatus();
}

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
  return absl::OkStatus();
}

absl::Status TrainStepOptions::Validate() const {
  SYNCOPATE_RETURN_IF_ERROR(loss.Validate());
  if (temperature <= 0 || updates_per_batch < 1 || micro_batch_tokens < 1) {
    return BadOption(absl::StrCat("temperature ", temperature, ", updates_per_batch ", updates_per_batch,
                                  " and micro_batch_tokens ", micro_batch_tokens, " must be positive"));
  }
  return absl::OkStatus();
}

}  // namespace syncopate::trainer
