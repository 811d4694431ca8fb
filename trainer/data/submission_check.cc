#include "trainer/data/submission_check.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/reasons.h"
#include "base/status.h"

namespace syncopate::trainer {
namespace {

// Reward functions are other people's code, and the names of parts become names of metrics.
constexpr size_t kMaxRewardParts = 32, kMaxRewardPartName = 64;
constexpr double kMostSeconds = 1e10;  // three centuries

absl::Status Invalid(absl::string_view reason, const std::string& text) {
  return Error(absl::StatusCode::kInvalidArgument, reason, text);
}

// Before anything counts written tokens.
absl::Status CheckGiven(const Trajectory& sample) {
  int32_t end = 0;
  for (const TokenRange& range : sample.given) {
    if (range.begin < end || range.end <= range.begin) {
      return Invalid("BAD_GIVEN", absl::StrCat("given tokens [", range.begin, ", ", range.end, ") after token ", end,
                                               ": ranges ascend, do not overlap and are not empty"));
    }
    end = range.end;
  }
  // The last token is the policy's, so one at least is.
  if (end < static_cast<int32_t>(sample.tokens.size())) return absl::OkStatus();
  return Invalid("BAD_GIVEN", absl::StrCat("given tokens end at token ", end, " of ", sample.tokens.size(),
                                           ", but the last one must be the policy's"));
}

absl::Status CheckNumbers(const std::vector<int32_t>& tokens, const std::vector<float>& logprobs,
                          const SubmissionRules& rules) {
  if (logprobs.size() != tokens.size()) {
    return Invalid("LENGTH_MISMATCH",
                   absl::StrCat(tokens.size(), " tokens but ", logprobs.size(), " log-probabilities"));
  }
  for (int32_t token : tokens) {
    if (token < 0 || token >= rules.vocab_size) {
      return Invalid("BAD_TOKEN", absl::StrCat("token ", token, " is outside the vocabulary of ", rules.vocab_size));
    }
  }
  for (float logprob : logprobs) {
    if (!IsPossibleLogProb(logprob)) {
      return Invalid("BAD_LOGPROB",
                     absl::StrCat("log-probability ", logprob, " is not from ", -kMaxMagnitude, " to 0"));
    }
  }
  return absl::OkStatus();
}

bool IsPossibleTime(double seconds) { return seconds >= 0 && seconds <= kMostSeconds; }  // false for NaN

absl::Status CheckTurns(const Trajectory& sample) {
  int32_t end = 0;
  for (const Turn& turn : sample.turns) {
    if (turn.end <= end || turn.end > std::ssize(sample.tokens)) {
      return Invalid("BAD_TURNS", absl::StrCat("a turn ends at token ", turn.end, ", but the previous one ended at ",
                                               end, " and the sample has ", sample.tokens.size()));
    }
    for (const TokenRange& range : sample.given) {
      if (range.begin < turn.end && turn.end <= range.end) {
        return Invalid("BAD_TURNS",
                       absl::StrCat("a turn ends at token ", turn.end, ", behind one that the policy did not write"));
      }
    }
    if (!IsPossibleReward(turn.reward)) {
      return Invalid("BAD_REWARD",
                     absl::StrCat("the reward ", turn.reward, " of a turn is not within ", kMaxMagnitude));
    }
    if (!IsPossibleTime(turn.seconds)) {
      return Invalid("BAD_TIME", absl::StrCat("a turn cannot have taken ", turn.seconds, " seconds"));
    }
    end = turn.end;
  }
  if (!sample.turns.empty() && end != std::ssize(sample.tokens)) {
    return Invalid("BAD_TURNS", absl::StrCat("the last turn ends at token ", end, " of ", sample.tokens.size()));
  }
  return absl::OkStatus();
}

absl::Status CheckTokens(const Trajectory& sample, const Lease& lease, const SubmissionRules& rules) {
  // All of this is checked again here, though rollouters make it: one bad sample would make a batch's gradient NaN, or
  // an index of an embedding go astray, long after its origin is forgotten.
  if (sample.finish == FinishReason::kAborted) return Invalid("ABORTED_SAMPLE", "the sample was aborted");
  if (sample.tokens.empty()) return Invalid("EMPTY_ANSWER", "the sample has no tokens");
  SYNCOPATE_RETURN_IF_ERROR(CheckGiven(sample));
  if (rules.max_total_tokens > 0 && std::ssize(sample.tokens) > rules.max_total_tokens) {
    return Invalid("TOO_LONG", absl::StrCat(sample.tokens.size(), " tokens, but an answer of several turns may have ",
                                            rules.max_total_tokens));
  }
  if (rules.max_total_tokens == 0 && WrittenTokens(sample) > lease.sampling.max_new_tokens) {
    return Invalid("TOO_LONG", absl::StrCat(WrittenTokens(sample), " tokens, but the lease allows ",
                                            lease.sampling.max_new_tokens));
  }
  const auto all = static_cast<int64_t>(lease.prompt_ids.size() + sample.tokens.size());
  if (rules.context > 0 && all > rules.context) {
    return Invalid("TOO_LONG", absl::StrCat("prompt and answer have ", all, " tokens, but the context of the run is ",
                                            rules.context));
  }
  SYNCOPATE_RETURN_IF_ERROR(CheckNumbers(sample.tokens, sample.logprobs, rules));
  for (const TokenRange& range : sample.given) {
    for (int32_t token = range.begin; token < range.end; ++token) {
      const float logprob = sample.logprobs[static_cast<size_t>(token)];
      if (logprob == 0) continue;
      return Invalid("BAD_LOGPROB", absl::StrCat("given token ", token, " has the log-probability ", logprob,
                                                 ", but the policy did not write it: must be 0"));
    }
  }
  if (!IsPossibleReward(sample.reward)) {
    return Invalid("BAD_REWARD", absl::StrCat("the reward ", sample.reward, " is not within ", kMaxMagnitude));
  }
  if (sample.extracted.size() > kMaxExtractedBytes) {
    return Invalid("BAD_EXTRACTED", absl::StrCat("the extracted answer has ", sample.extracted.size(),
                                                 " bytes, but at most ", kMaxExtractedBytes));
  }
  const double seconds = sample.generate_seconds;
  if (!IsPossibleTime(seconds))
    return Invalid("BAD_TIME", absl::StrCat("generation cannot have taken ", seconds, " seconds"));
  return CheckTurns(sample);
}

// `first` is the group's first sample: GDPO normalises each part over the group, so a part must be there in all of
// them.
absl::Status CheckRewardParts(const Trajectory& sample, const Trajectory& first) {
  if (sample.reward_parts.size() > kMaxRewardParts) {
    return Invalid("BAD_REWARD_PARTS",
                   absl::StrCat(sample.reward_parts.size(), " reward parts, but at most ", kMaxRewardParts));
  }
  if (sample.reward_parts.size() != first.reward_parts.size()) {
    return Invalid("BAD_REWARD_PARTS", absl::StrCat(sample.reward_parts.size(), " reward parts, but sample 0 has ",
                                                    first.reward_parts.size()));
  }
  for (size_t i = 0; i < sample.reward_parts.size(); ++i) {
    const RewardPart& part = sample.reward_parts[i];
    if (part.name.empty() || part.name.size() > kMaxRewardPartName) {
      return Invalid("BAD_REWARD_PARTS", absl::StrCat("the name of reward part ", i, " has ", part.name.size(),
                                                      " bytes: expected 1 to ", kMaxRewardPartName));
    }
    if (part.name != first.reward_parts[i].name) {
      return Invalid("BAD_REWARD_PARTS", absl::StrCat("reward part ", i, " is ", part.name, ", but in sample 0 it is ",
                                                      first.reward_parts[i].name));
    }
    if (!IsPossibleReward(part.value)) {
      return Invalid("BAD_REWARD_PARTS",
                     absl::StrCat("reward part ", part.name, " is ", part.value, ", not within ", kMaxMagnitude));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckKnown(const PolicyVersion& version, const SubmissionRules& rules) {
  if (version.epoch == rules.epoch && rules.known_steps.contains(version.step)) return absl::OkStatus();
  return Invalid("UNKNOWN_VERSION",
                 absl::StrCat("tokens of version ", version.ToString(), ", which this trainer has not published"));
}

// Which version made which tokens: importance ratios and the bound on staleness depend on it.
absl::Status CheckSpans(const Trajectory& sample, const PolicyVersion& oldest, const SubmissionRules& rules) {
  int32_t end = 0;
  PolicyVersion last = oldest;
  auto given = sample.given.begin();
  // Given tokens that begin where a span has ended.
  auto skip_given = [&] {
    for (; given != sample.given.end() && given->begin == end; ++given) end = given->end;
  };
  for (const VersionSpan& span : sample.spans) {
    skip_given();
    const bool runs_into_given = given != sample.given.end() && span.end > given->begin;
    if (span.begin != end || span.end <= span.begin || runs_into_given) {
      return Invalid("BAD_SPANS",
                     absl::StrCat("version span [", span.begin, ", ", span.end, ") does not follow token ", end,
                                  "; spans cover all tokens in order, but for those that were given"));
    }
    end = span.end;
    SYNCOPATE_RETURN_IF_ERROR(CheckKnown(span.version, rules));
    // A replica never serves an older version after a newer one; and the lease was given after `oldest` was served.
    if (span.version < last) {
      return Invalid("VERSION_BEFORE_LEASE", absl::StrCat("tokens of version ", span.version.ToString(), " after ",
                                                          last.ToString(), " was served"));
    }
    last = span.version;
  }
  if (end != static_cast<int32_t>(sample.tokens.size())) {
    return Invalid("BAD_SPANS", absl::StrCat("version spans end at token ", end, " of ", sample.tokens.size()));
  }
  return absl::OkStatus();
}

template <typename Better>
PolicyVersion SelectVersion(const TrajectoryGroup& group, Better better) {
  PolicyVersion best;
  for (const Trajectory& sample : group.samples) {
    for (const VersionSpan& span : sample.spans) {
      if (best.IsNone() || better(span.version, best)) best = span.version;
    }
  }
  return best;
}

}  // namespace

absl::Status CheckPart(const AnswerPart& part, const Lease& lease, const SubmissionRules& rules) {
  const int64_t end = part.begin + std::ssize(part.tokens);
  if (part.sample < 0 || part.sample >= lease.samples || end > lease.sampling.max_new_tokens) {
    return Invalid("BAD_PART",
                   absl::StrCat("tokens ", part.begin, " to ", end, " of sample ", part.sample, ", but the lease has ",
                                lease.samples, " samples of ", lease.sampling.max_new_tokens, " tokens"));
  }
  SYNCOPATE_RETURN_IF_ERROR(CheckNumbers(part.tokens, part.logprobs, rules));
  for (const VersionSpan& span : part.spans) {
    SYNCOPATE_RETURN_IF_ERROR(CheckKnown(span.version, rules));
    if (span.version >= lease.version) continue;
    return Invalid("VERSION_BEFORE_LEASE", absl::StrCat("tokens of version ", span.version.ToString(), " after ",
                                                        lease.version.ToString(), " was served"));
  }
  return absl::OkStatus();
}

absl::Status CheckEpoch(const TrajectoryGroup& group, int64_t epoch) {
  PolicyVersion oldest = OldestVersion(group);
  if (oldest.IsNone() || oldest.epoch >= epoch) return absl::OkStatus();
  return Error(absl::StatusCode::kFailedPrecondition, reason::kFenced,
               absl::StrCat("group ", group.lease.group.ToString(), " contains tokens of ", oldest.ToString(),
                            ", but the trainer works in epoch ", epoch, " now"),
               {{"epoch", absl::StrCat(epoch)}});
}

absl::Status CheckSubmission(const TrajectoryGroup& group, const Lease& lease, const PolicyVersion& oldest,
                             const SubmissionRules& rules) {
  // First: versions of another epoch mean nothing here, so what follows would blame the wrong thing.
  SYNCOPATE_RETURN_IF_ERROR(CheckEpoch(group, rules.epoch));
  if (group.kind != lease.kind) {
    return Invalid("WRONG_KIND", lease.kind == LeaseKind::kTraining
                                     ? "a training lease is answered as one of an evaluation"
                                     : "a lease of an evaluation is answered as one of training");
  }
  if (static_cast<int64_t>(group.samples.size()) != lease.samples) {
    return Invalid("WRONG_SAMPLE_COUNT",
                   absl::StrCat(group.samples.size(), " samples, but the lease asks for ", lease.samples));
  }
  if (group.prompt_ids != lease.prompt_ids) return Invalid("WRONG_PROMPT", "the prompt is not the one that was leased");
  for (size_t i = 0; i < group.samples.size(); ++i) {
    absl::Status status = CheckTokens(group.samples[i], lease, rules);
    if (status.ok()) status = CheckRewardParts(group.samples[i], group.samples[0]);
    if (status.ok()) status = CheckSpans(group.samples[i], oldest, rules);
    if (!status.ok()) {
      return Annotate(status, absl::StrCat("group ", group.lease.group.ToString(), " sample ", i));
    }
  }
  return absl::OkStatus();
}

PolicyVersion OldestVersion(const TrajectoryGroup& group) {
  return SelectVersion(group, [](const PolicyVersion& a, const PolicyVersion& b) { return a < b; });
}

PolicyVersion NewestVersion(const TrajectoryGroup& group) {
  return SelectVersion(group, [](const PolicyVersion& a, const PolicyVersion& b) { return a > b; });
}

}  // namespace syncopate::trainer
