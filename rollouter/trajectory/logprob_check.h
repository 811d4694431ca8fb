#pragma once

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace syncopate::rollouter {

// What an engine with good weights always gives: OK if every log-probability is finite and at most 0. Else INTERNAL
// (reason BAD_LOGPROB) naming the token: numbers of the model's have overflowed, and nothing that was drawn from them
// means anything.
absl::Status CheckLogProbs(absl::Span<const float> logprobs);

}  // namespace syncopate::rollouter
