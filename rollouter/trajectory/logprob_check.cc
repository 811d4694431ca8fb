#include "rollouter/trajectory/logprob_check.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace syncopate::rollouter {

absl::Status CheckLogProbs(absl::Span<const float> logprobs) {
  for (size_t i = 0; i < logprobs.size(); ++i) {
    if (std::isfinite(logprobs[i]) && logprobs[i] <= 0) continue;
    return Error(absl::StatusCode::kInternal, "BAD_LOGPROB",
                 absl::StrCat("the log-probability of token ", i, " is ", logprobs[i],
                              "; the model overflows with these weights: look at train.learning_rate, or set "
                              "model.dtype=float32"));
  }
  return absl::OkStatus();
}

}  // namespace syncopate::rollouter
