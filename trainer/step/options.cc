#include "trainer/step/options.h"

#include "absl/strings/str_cat.h"

namespace syncopate::trainer {

absl::Status TrainStepOptions::Validate() const {
  SYNCOPATE_RETURN_IF_ERROR(loss.Validate());
  if (temperature <= 0 || updates_per_batch < 1 || micro_batch_tokens < 1) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_STEP_OPTIONS",
                 absl::StrCat("temperature ", temperature, ", updates_per_batch ", updates_per_batch,
                              " and micro_batch_tokens ", micro_batch_tokens, " must be positive"));
  }
  return absl::OkStatus();
}

// With an advantage of 1 for each token, REINFORCE's token mean of -A n is the mean cross-entropy.
TrainStepOptions TrainStepOptions::Supervised() const {
  TrainStepOptions options = *this;
  options.loss = loss::LossOptions();
  options.loss.surrogate = loss::Surrogate::kReinforce;
  options.loss.correction = loss::Correction::kNone;
  options.loss.aggregation = loss::Aggregation::kTokenMean;
  options.temperature = 1.0;
  options.updates_per_batch = 1;
  return options;
}

}  // namespace syncopate::trainer
