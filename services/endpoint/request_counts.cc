#include "services/endpoint/request_counts.h"

#include <algorithm>

namespace syncopate::endpoint {

RequestResult ResultForCode(int code) {
  if (code == 429) return RequestResult::kBusy;
  if (code >= 500) return RequestResult::kFailed;
  return code >= 400 ? RequestResult::kRefused : RequestResult::kOk;
}

void RequestCounts::ObserveFirstToken(absl::Duration time) {
  const auto* const bound =
      std::lower_bound(kFirstTokenBounds.begin(), kFirstTokenBounds.end(), absl::ToDoubleSeconds(time));
  ++first_token_[static_cast<size_t>(bound - kFirstTokenBounds.begin())];
  first_token_micros_ += absl::ToInt64Microseconds(time);
}

RequestCounts::Figures RequestCounts::GetFigures() const {
  Figures figures;
  std::copy(ended_.begin(), ended_.end(), figures.ended.begin());
  figures.under_way = under_way_;
  figures.prompt_tokens = prompt_tokens_;
  figures.completion_tokens = completion_tokens_;
  std::copy(first_token_.begin(), first_token_.end(), figures.first_token.begin());
  figures.first_token_seconds = 1e-6 * static_cast<double>(first_token_micros_);
  return figures;
}

}  // namespace syncopate::endpoint
