#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "rollouter/reward/remote_scorer.h"

// What an HTTP reward service is sent and answers; docs/rewards.md describes it to those who write one. Pure.
namespace syncopate::rollouter {

struct HttpAnswer {
  std::string row_json;  // a JSON object; "" if there is none
  std::string text;
  FinishReason finish = FinishReason::kStop;
};

// {"answers": [{"text": "...", "finish": "stop" | "length", "row": {...} | null}, ...]}. Bytes that are no UTF-8 are
// replaced.
std::string HttpRequestBody(const std::vector<HttpAnswer>& answers);

// Of {"rewards": [1.0, {"value": 0.5, "components": {"style": 0.25}}, {"error": "..."}, ...]}, one for each of
// `answers`. INTERNAL (reason BAD_HTTP_ANSWER) if it is anything else.
absl::StatusOr<RemoteScorer::Rewards> ParseHttpResponse(absl::string_view body, size_t answers);

}  // namespace syncopate::rollouter
