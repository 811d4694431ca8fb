#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/policy_version.h"

// Plain records that cross the border between trainer and rollouter. No behaviour, no wire format.
namespace syncopate {

// Identifies one incarnation of a process.
struct MemberId {
  std::string role;        // "trainer", "rollouter"
  std::string replica_id;  // the same for all ranks of one replica
  int32_t rank = 0;        // within the replica (trainer: within the rank group)
  int32_t world = 1;
  std::string incarnation;  // SHA-256 of a secret drawn at process start: base/identity.h
  friend auto operator<=>(const MemberId&, const MemberId&) = default;
};

struct TokenBias {
  int32_t token = 0;
  float bias = 0;
  friend bool operator==(const TokenBias&, const TokenBias&) = default;
};

// How tokens are drawn. Changes to the logits are applied in the order of the fields: allowed tokens, bias, repetition,
// presence and frequency penalty, temperature, min-p, top-k, top-p.
struct SamplingParams {
  std::vector<int32_t> allowed_token_ids = {};  // only these are drawn; empty: all are allowed
  std::vector<TokenBias> logit_bias = {};       // added to the logits of these tokens
  // A logit of a token that occurs in the prompt or the answer is divided by this if positive, else multiplied; 1 is
  // off.
  float repetition_penalty = 1.0f;
  float presence_penalty = 0;   // subtracted from the logits of tokens that occur in the answer
  float frequency_penalty = 0;  // subtracted once for each time that the token occurs in the answer
  float temperature = 1.0f;     // 0 means greedy
  float min_p = 0;              // tokens with less than this share of the highest probability are not drawn; 0 is off
  int32_t top_k = 0;            // 0 is off
  float top_p = 1.0f;           // (0, 1]; 1 is off
  int32_t max_new_tokens = 16;
  std::vector<int32_t> stop_token_ids = {};               // the stop token is part of the answer
  std::vector<std::vector<int32_t>> stop_sequences = {};  // sequences that stop the answer and are part of it
  int32_t top_logprobs = 0;  // how many of the likeliest tokens are reported with each token

  // True if tokens are drawn from the model's own logits divided by the temperature, with no token cut off. The
  // reported log-probability is then that of the draw. Training leases require it.
  bool DrawsFromThePolicy() const {
    return allowed_token_ids.empty() && logit_bias.empty() && repetition_penalty == 1 && presence_penalty == 0 &&
           frequency_penalty == 0 && min_p == 0 && top_k == 0 && top_p == 1;
  }
  friend bool operator==(const SamplingParams&, const SamplingParams&) = default;
};

// A group is one prompt of one pass over the data.
struct GroupId {
  int64_t pass = 0;
  int64_t ordinal = 0;  // position of the prompt in the pass's order
  std::string ToString() const { return absl::StrCat(pass, "/", ordinal); }
  friend auto operator<=>(const GroupId&, const GroupId&) = default;
};

// The right to answer a group, once. Attempts of a group are counted from 1; only the newest one is accepted.
struct LeaseId {
  GroupId group;
  int32_t attempt = 0;
  friend auto operator<=>(const LeaseId&, const LeaseId&) = default;
};

enum class LeaseKind : uint8_t { kTraining = 1, kEvaluation = 2 };

// The environment that judges the answers to a prompt, and its data, if the task is not a built-in one.
struct Task {
  std::string environment;  // a name among the rollouter's rewards; empty: `Lease.reward` alone decides
  std::string row_json;     // the row of the data file as a JSON object; empty: there is none
  friend bool operator==(const Task&, const Task&) = default;
};

enum class FinishReason : uint8_t { kStop = 1, kLength = 2, kAborted = 3 };

// How a lease begins one sample: with these tokens of an earlier lease of the group, which are not made again.
struct AnswerStart {
  std::vector<int32_t> tokens;
  std::optional<FinishReason> finish = {};  // set: they are the whole answer, which is only scored
  friend bool operator==(const AnswerStart&, const AnswerStart&) = default;
};

struct Lease {
  LeaseId id;
  LeaseKind kind = LeaseKind::kTraining;
  PolicyVersion version;  // training: the version the gate admitted it for; evaluation: the version asked for
  int32_t samples = 1;    // n
  std::vector<int32_t> prompt_ids;
  std::vector<int32_t> answer_ids;  // the answer that the reward compares with; may be empty
  Task task;
  std::string reward;  // a name in the rollouter's reward registry
  SamplingParams sampling;
  uint64_t seed = 0;                // GroupSeed(); sample i draws with SampleSeed(seed, i)
  std::vector<AnswerStart> starts;  // one for each sample; empty: every sample begins with its first token
};

// H(run seed, prompt): never a function of lease, epoch or rollouter, so a repeated attempt draws the same numbers.
constexpr uint64_t GroupSeed(uint64_t run_seed, const GroupId& group) {
  return HashCombine(HashCombine(run_seed, static_cast<uint64_t>(group.pass)), static_cast<uint64_t>(group.ordinal));
}
constexpr uint64_t SampleSeed(uint64_t group_seed, int32_t sample) {
  return HashCombine(group_seed, static_cast<uint64_t>(sample));
}

// Tokens [begin, end) of an answer were made by `version`.
struct VersionSpan {
  PolicyVersion version;
  int32_t begin = 0;
  int32_t end = 0;
  friend bool operator==(const VersionSpan&, const VersionSpan&) = default;
};

// Tokens [begin, end) of an answer.
struct TokenRange {
  int32_t begin = 0;
  int32_t end = 0;
  friend bool operator==(const TokenRange&, const TokenRange&) = default;
};

struct TokenLogProb {
  int32_t token = 0;
  float logprob = 0;
  friend bool operator==(const TokenLogProb&, const TokenLogProb&) = default;
};

// Limit of valid rewards and log-probabilities: a peer that sends a larger magnitude is broken or hostile. Both
// functions are false for NaN.
inline constexpr float kMaxMagnitude = 1e30f;
constexpr bool IsPossibleReward(float value) { return value >= -kMaxMagnitude && value <= kMaxMagnitude; }
constexpr bool IsPossibleLogProb(float value) { return value >= -kMaxMagnitude && value <= 0; }  // p is at most 1

// One component of a reward, before its weight is applied.
struct RewardPart {
  std::string name;
  float value = 0;
  friend bool operator==(const RewardPart&, const RewardPart&) = default;
};

inline constexpr size_t kMaxExtractedBytes = 256;

// One turn of an answer that an environment plays, from the end of the previous turn on: what the environment said,
// and then what the policy wrote.
struct Turn {
  int32_t end = 0;     // one past the turn's last token, which the policy wrote
  float reward = 0;    // what the environment gave for this turn
  double seconds = 0;  // that the environment took to answer it
  friend bool operator==(const Turn&, const Turn&) = default;
};

// One sample of a group, finished. `logprobs[i]` is the behaviour log-probability of `tokens[i]` at the sampling
// temperature, before top-k and top-p; 0 for a token in `given`. `spans` and `given` together cover all tokens without
// gaps, each in ascending order, and do not overlap.
struct Trajectory {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  std::vector<VersionSpan> spans;
  // Tokens that the policy did not write: a tool's answer, a user's turn. The ranges are ascending, disjoint and not
  // empty, and do not contain the last token. The model reads these tokens; they are never trained.
  std::vector<TokenRange> given = {};
  FinishReason finish = FinishReason::kStop;
  float reward = 0;
  std::vector<RewardPart> reward_parts;  // components of `reward`; same names in the same order in a whole group
  double generate_seconds = 0;
  std::string extracted;  // the answer that the reward found in the text, as it compares it; empty: it finds none
  std::vector<Turn> turns = {};  // of an environment: ends ascend, the last one is the end of `tokens`; else empty
  // Its environment says that this sample must not be learned from: no loss, no advantage, and no part in the mean and
  // the deviation of its group.
  bool rejected = false;
  // If requested: for each token, the likeliest tokens at its position, likeliest first. Never sent to the trainer.
  std::vector<std::vector<TokenLogProb>> top_logprobs;
};

// The number of tokens of an answer that the policy wrote.
inline int64_t WrittenTokens(const Trajectory& answer) {
  auto written = static_cast<int64_t>(answer.tokens.size());
  for (const TokenRange& range : answer.given) written -= range.end - range.begin;
  return written;
}

// Calls `visit` with the index in `tokens` of each token that the policy wrote, ascending.
template <typename Visit>
void ForWrittenTokens(const Trajectory& answer, const Visit& visit) {
  int32_t next = 0;
  for (const TokenRange& range : answer.given) {
    for (; next < range.begin; ++next) visit(next);
    next = range.end;
  }
  for (; next < static_cast<int32_t>(answer.tokens.size()); ++next) visit(next);
}

// What a rollouter has made of one sample since its last report. Places are those in the whole answer, so a lease that
// continues an answer reports from the length of its start on.
struct AnswerPart {
  int32_t sample = 0;
  int32_t begin = 0;  // the place of tokens[0]
  std::vector<int32_t> tokens = {};
  std::vector<float> logprobs = {};         // as many as tokens
  std::vector<VersionSpan> spans = {};      // cover the tokens without gaps, ascending
  std::optional<FinishReason> finish = {};  // set: the sample ends with these tokens
  friend bool operator==(const AnswerPart&, const AnswerPart&) = default;
};

// What a rollouter submits: all n samples of one lease, in sample order.
struct TrajectoryGroup {
  LeaseId lease;
  LeaseKind kind = LeaseKind::kTraining;
  std::string rollouter;    // replica_id
  std::string incarnation;  // of the rollouter
  std::vector<int32_t> prompt_ids;
  std::vector<Trajectory> samples;
};

}  // namespace syncopate
