#pragma once

#include <cstdint>
#include <set>

#include "absl/status/status.h"
#include "base/trajectory.h"

namespace syncopate::trainer {

// The rules by which a group is a valid answer to a lease.
struct SubmissionRules {
  int32_t vocab_size = 0;              // tokens are in [0, vocab_size)
  int64_t epoch = 0;                   // the trainer's
  std::set<int64_t> known_steps = {};  // versions published in this epoch that tokens may still come from
  int64_t max_total_tokens = 0;        // of an answer, given ones counted; 0: it has one turn, which the lease limits
  int64_t context = 0;                 // tokens that prompt and answer may have together; 0: not known
};

// OK, or why `group` is no answer to `lease`; lease ids are not compared. `oldest` is the least version a token may
// have: a rollouter's serving version never goes back, so an answer contains nothing older than what its lease was
// admitted for. Pure; O(tokens).
//   FAILED_PRECONDITION  FENCED: a token was made by a version of an older epoch.
//   INVALID_ARGUMENT     WRONG_SAMPLE_COUNT, WRONG_PROMPT, EMPTY_ANSWER, ABORTED_SAMPLE, LENGTH_MISMATCH, TOO_LONG,
//                        BAD_TOKEN, BAD_GIVEN, BAD_LOGPROB, BAD_REWARD, BAD_REWARD_PARTS, BAD_EXTRACTED, BAD_SPANS, UNKNOWN_VERSION, VERSION_BEFORE_LEASE.
// The message names the sample and the value.
absl::Status CheckSubmission(const TrajectoryGroup& group, const Lease& lease, const PolicyVersion& oldest,
                             const SubmissionRules& rules);

// OK, or why no answer to `lease` can have `part`: INVALID_ARGUMENT with the reasons above. Whether it continues what
// is known of the answer is for PartialAnswers to say.
absl::Status CheckPart(const AnswerPart& part, const Lease& lease, const SubmissionRules& rules);

// FENCED as above, or OK: whatever else is wrong, an answer of an older epoch is refused for that.
absl::Status CheckEpoch(const TrajectoryGroup& group, int64_t epoch);

// The least version among the tokens; none when there are none.
PolicyVersion OldestVersion(const TrajectoryGroup& group);
PolicyVersion NewestVersion(const TrajectoryGroup& group);

}  // namespace syncopate::trainer
