#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "rollouter/reward/remote_scorer.h"

// The request and response bodies of an HTTP reward service, which docs/rewards.md specifies. Pure functions.
namespace syncopate::rollouter {

struct HttpAnswer {
  std::string row_json;  // a JSON object; "" if there is none
  std::string text;
  FinishReason finish = FinishReason::kStop;
};

// Returns {"answers": [{"text": "...", "finish": "stop" | "length", "row": {...} | null}, ...]}. Bytes that are not
// valid UTF-8 are replaced.
std::string HttpRequestBody(const std::vector<HttpAnswer>& answers);

// Parses {"rewards": [1.0, {"value": 0.5, "components": {"style": 0.25}}, {"error": "..."}, ...]}, which must have one
// entry for each of `answers`. INTERNAL (reason BAD_HTTP_ANSWER) if the body has another form; a bad entry gives an
// error of that entry only (reason BAD_HTTP_ANSWER or HTTP_REWARD_ERROR).
absl::StatusOr<RemoteScorer::Rewards> ParseHttpResponse(absl::string_view body, size_t answers);

}  // namespace syncopate::rollouter
