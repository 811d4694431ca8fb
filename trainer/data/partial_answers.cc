#include "trainer/data/partial_answers.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace syncopate::trainer {
namespace {

int64_t PartBytes(size_t tokens, size_t spans) {
  return static_cast<int64_t>(tokens * (sizeof(int32_t) + sizeof(float)) + spans * sizeof(VersionSpan));
}

bool Cover(const std::vector<VersionSpan>& spans, int32_t begin, int32_t end) {
  for (const VersionSpan& span : spans) {
    if (span.begin != begin || span.end <= span.begin) return false;
    begin = span.end;
  }
  return begin == end;
}

// A span that goes on with the version before it is the same span.
void AppendSpans(const std::vector<VersionSpan>& more, std::vector<VersionSpan>* spans) {
  for (const VersionSpan& span : more) {
    if (!spans->empty() && spans->back().version == span.version && spans->back().end == span.begin) {
      spans->back().end = span.end;
    } else {
      spans->push_back(span);
    }
  }
}

void CutSpans(int32_t end, std::vector<VersionSpan>* spans) {
  while (!spans->empty() && spans->back().begin >= end) spans->pop_back();
  if (!spans->empty()) spans->back().end = std::min(spans->back().end, end);
}

absl::Status CheckPart(const AnswerPart& part) {
  const bool possible = std::all_of(part.logprobs.begin(), part.logprobs.end(), IsPossibleLogProb);
  const int64_t end = int64_t{part.begin} + static_cast<int64_t>(part.tokens.size());
  if (part.logprobs.size() == part.tokens.size() && possible && end <= INT32_MAX &&
      Cover(part.spans, part.begin, static_cast<int32_t>(end))) {
    return absl::OkStatus();
  }
  return Error(absl::StatusCode::kInvalidArgument, "BAD_PART",
               absl::StrCat("sample ", part.sample, " has an impossible part at ", part.begin));
}

}  // namespace

int64_t PartialAnswers::CountBytes(const Entry& entry) {
  int64_t bytes = 0;
  for (const Sample& sample : entry.samples) bytes += PartBytes(sample.tokens.size(), sample.spans.size());
  return bytes;
}

std::vector<AnswerStart> PartialAnswers::BeginLease(const LeaseId& lease, int32_t samples, bool reports) {
  std::vector<AnswerStart> starts;
  if (most_bytes_ == 0) return starts;
  Entry& entry = groups_[lease.group];
  entry.samples.resize(static_cast<size_t>(samples));
  if (reports) entry.reporter = lease.attempt;
  if (!HasTokens(lease.group)) return starts;
  std::vector<Begun>& begun = entry.starts[lease.attempt];
  begun.clear();
  for (const Sample& sample : entry.samples) {
    starts.push_back({sample.tokens, sample.finish});
    begun.push_back({static_cast<int32_t>(sample.tokens.size()), sample.finish.has_value()});
  }
  return starts;
}

absl::Status PartialAnswers::Add(const LeaseId& lease, const AnswerPart& part) {
  auto found = groups_.find(lease.group);
  if (found == groups_.end() || found->second.reporter != lease.attempt) {
    return Error(absl::StatusCode::kFailedPrecondition, "NOT_REPORTING", "this lease does not report");
  }
  Entry& entry = found->second;
  if (part.sample < 0 || part.sample >= std::ssize(entry.samples)) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_PART", absl::StrCat("there is no sample ", part.sample));
  }
  Sample& sample = entry.samples[static_cast<size_t>(part.sample)];
  if (sample.finish.has_value() || !ContinuesKept(part.begin, static_cast<int32_t>(sample.tokens.size()))) {
    return Error(absl::StatusCode::kFailedPrecondition, "NOT_CONTINUED",
                 absl::StrCat("a part begins at ", part.begin, ", and ", sample.tokens.size(), " tokens are kept"));
  }
  SYNCOPATE_RETURN_IF_ERROR(CheckPart(part));
  if (bytes_ + PartBytes(part.tokens.size(), part.spans.size()) > most_bytes_) {
    return Error(absl::StatusCode::kResourceExhausted, "NO_ROOM", "too many bytes of unfinished answers");
  }
  const int64_t before = CountBytes(entry);
  sample.tokens.insert(sample.tokens.end(), part.tokens.begin(), part.tokens.end());
  sample.logprobs.insert(sample.logprobs.end(), part.logprobs.begin(), part.logprobs.end());
  AppendSpans(part.spans, &sample.spans);
  if (!sample.tokens.empty()) sample.finish = part.finish;
  bytes_ += CountBytes(entry) - before;
  return absl::OkStatus();
}

bool PartialAnswers::HasStart(const LeaseId& lease) const {
  auto found = groups_.find(lease.group);
  return found != groups_.end() && found->second.starts.contains(lease.attempt);
}

absl::Status PartialAnswers::JoinSample(const Sample& kept, const Begun& start, Trajectory* answer) const {
  const auto end = start.tokens + static_cast<int32_t>(answer->tokens.size());
  if (!answer->given.empty() || answer->logprobs.size() != answer->tokens.size() ||
      !Cover(answer->spans, start.tokens, end) || (start.finished && !answer->tokens.empty())) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_CONTINUATION",
                 absl::StrCat("an answer of ", answer->tokens.size(), " tokens does not continue its start of ",
                              start.tokens, start.finished ? ", which is finished" : ""));
  }
  if (start.finished) answer->finish = *kept.finish;
  if (!NeedsPrefix(start.tokens)) return absl::OkStatus();
  answer->tokens.insert(answer->tokens.begin(), kept.tokens.begin(), kept.tokens.begin() + start.tokens);
  answer->logprobs.insert(answer->logprobs.begin(), kept.logprobs.begin(), kept.logprobs.begin() + start.tokens);
  std::vector<VersionSpan> spans = kept.spans;
  CutSpans(start.tokens, &spans);
  AppendSpans(answer->spans, &spans);
  answer->spans = std::move(spans);
  return absl::OkStatus();
}

absl::Status PartialAnswers::Join(TrajectoryGroup* answer) const {
  const Entry& entry = groups_.at(answer->lease.group);
  const std::vector<Begun>& begun = entry.starts.at(answer->lease.attempt);
  if (answer->samples.size() != begun.size()) {
    return Error(absl::StatusCode::kInvalidArgument, "WRONG_SAMPLE_COUNT",
                 absl::StrCat(answer->samples.size(), " samples, but the lease asks for ", begun.size()));
  }
  std::vector<Trajectory> joined = answer->samples;
  for (size_t i = 0; i < joined.size(); ++i) {
    SYNCOPATE_RETURN_IF_ERROR(Annotate(JoinSample(entry.samples[i], begun[i], &joined[i]), absl::StrCat("sample ", i)));
  }
  answer->samples = std::move(joined);
  return absl::OkStatus();
}

bool PartialAnswers::HasTokens(const GroupId& group) const {
  auto found = groups_.find(group);
  return found != groups_.end() && std::any_of(found->second.samples.begin(), found->second.samples.end(),
                                               [](const Sample& sample) { return !sample.tokens.empty(); });
}

void PartialAnswers::Forget(const GroupId& group) {
  auto found = groups_.find(group);
  if (found == groups_.end()) return;
  bytes_ -= CountBytes(found->second);
  groups_.erase(found);
}

PolicyVersion PartialAnswers::NewestVersion(const GroupId& group) const {
  PolicyVersion newest;
  auto found = groups_.find(group);
  if (found == groups_.end()) return newest;
  for (const Sample& sample : found->second.samples) {
    if (!sample.spans.empty()) newest = std::max(newest, sample.spans.back().version);
  }
  return newest;
}

int64_t PartialAnswers::CountTokens(const GroupId& group) const {
  int64_t tokens = 0;
  auto found = groups_.find(group);
  if (found == groups_.end()) return tokens;
  for (const Sample& sample : found->second.samples) tokens += std::ssize(sample.tokens);
  return tokens;
}

}  // namespace syncopate::trainer
