#include "rollouter/trajectory/answer_reports.h"

#include <algorithm>
#include <utility>

namespace syncopate::rollouter {
namespace {

// Takes the first `tokens` tokens off `part`.
AnswerPart Split(int32_t tokens, AnswerPart* part) {
  AnswerPart first{.sample = part->sample, .begin = part->begin};
  part->begin += tokens;
  first.tokens.assign(part->tokens.begin(), part->tokens.begin() + tokens);
  first.logprobs.assign(part->logprobs.begin(), part->logprobs.begin() + tokens);
  part->tokens.erase(part->tokens.begin(), part->tokens.begin() + tokens);
  part->logprobs.erase(part->logprobs.begin(), part->logprobs.begin() + tokens);
  std::vector<VersionSpan> rest;
  for (const VersionSpan& span : part->spans) {
    if (span.begin < part->begin) first.spans.push_back({span.version, span.begin, std::min(span.end, part->begin)});
    if (span.end > part->begin) rest.push_back({span.version, std::max(span.begin, part->begin), span.end});
  }
  part->spans = std::move(rest);
  return first;
}

}  // namespace

AnswerReports::AnswerReports(const std::vector<int32_t>& begins) {
  for (int32_t begin : begins) {
    const auto sample = static_cast<int32_t>(unreported_.size());
    unreported_.push_back({.sample = sample, .begin = begin});
  }
}

void AnswerReports::OnToken(int32_t sample, int32_t token, float logprob, const PolicyVersion& version) {
  MutexLock lock(&mutex_);
  AnswerPart& part = unreported_[static_cast<size_t>(sample)];
  const int32_t place = part.begin + static_cast<int32_t>(part.tokens.size());
  part.tokens.push_back(token);
  part.logprobs.push_back(logprob);
  if (part.spans.empty() || part.spans.back().version != version) part.spans.push_back({version, place, place});
  part.spans.back().end = place + 1;
}

void AnswerReports::OnFinished(int32_t sample, FinishReason finish) {
  if (finish == FinishReason::kAborted) return;
  MutexLock lock(&mutex_);
  unreported_[static_cast<size_t>(sample)].finish = finish;
}

std::vector<AnswerPart> AnswerReports::Take(int64_t least) {
  std::vector<AnswerPart> taken;
  MutexLock lock(&mutex_);
  for (AnswerPart& part : unreported_) {
    if (part.finish.has_value()) {
      const int32_t end = part.begin + static_cast<int32_t>(part.tokens.size());
      AnswerPart none{.sample = part.sample, .begin = end};
      taken.push_back(std::exchange(part, std::move(none)));
      continue;
    }
    // The newest token may be the one that ends the sample, which is known a moment later.
    const auto tokens = static_cast<int32_t>(part.tokens.size()) - 1;
    if (tokens >= std::max<int64_t>(least, 1)) taken.push_back(Split(tokens, &part));
  }
  return taken;
}

}  // namespace syncopate::rollouter
