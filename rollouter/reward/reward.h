#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/trajectory.h"

namespace syncopate::rollouter {

// What the tokens of an answer say, without special ones, as valid UTF-8: made by whoever knows the tokenizer. Pure, safe
// from any thread.
using TextDecoder = std::function<std::string(const std::vector<int32_t>&)>;

// The right answer of a row of a data file: the text under "ground_truth", where the trainer puts it whatever the file
// calls it; a number or a boolean as JSON writes it.
struct RewardRow {
  bool has_truth = false;
  std::string truth = {};
};
// INVALID_ARGUMENT (reason BAD_ROW) if it is no JSON object. No text is a row without a truth.
absl::StatusOr<RewardRow> ParseRewardRow(const std::string& row_json);

// What a reward is computed from. The stop token, if there is one, is the last of `response`.
struct RewardInput {
  const std::vector<int32_t>& prompt_ids;
  const std::vector<int32_t>& answer_ids;  // the right answer, stop token included; may be empty
  const std::vector<int32_t>& response;    // what was generated
  std::string text = {};                   // the same decoded; "" if the reward reads no text
  RewardRow row = {};
  int32_t max_new_tokens = 0;  // the longest that `response` could have become
};

struct RewardValue {
  float value = 0;
  bool undecided = false;  // it could not tell: `value` counts if nobody else can
};

// A pure function of its input, safe to call from any thread. An error is the data's or the code's fault, not the
// policy's: the answer gets no reward at all.
using RewardFunction = std::function<absl::StatusOr<RewardValue>(const RewardInput&)>;

// What the rewards of a run are told beside the answers.
struct RewardParameters {
  std::string pattern = {};     // of regex
  std::string format = {};      // of format
  int64_t overlong_buffer = 0;  // of overlong, tokens
};

// Rewards by name. A lease names the reward it wants; the rollouter that generates also scores. Filled before it is
// handed to whoever scores, then read only, so that reading needs no lock.
class RewardRegistry {
 public:
  struct Reward {
    RewardFunction function;
    bool reads_text = false;
  };

  // Those that need no parameters:
  //   dense         share of the answer's positions that the response has right
  //   exact         1 if the response equals the answer, else 0
  //   match         1 if the text, behind the last </think>, is the row's truth; blanks around both do not count
  //   final_number  1 if the number behind "####", or else the last number, is the truth's
  //   math          1 if the last \boxed{} means the same as the truth; undecided if that cannot be computed
  static RewardRegistry BuiltIn();
  // And those for which `parameters` say how:
  //   regex         1 if `pattern` is found and, should it have a group, its last match's group 1 is the truth
  //   format        1 if `format` matches the whole text
  //   overlong      0 while `overlong_buffer` tokens are left of max_new_tokens, from there in a line to -1 at
  //                 max_new_tokens (DAPO, arXiv 2503.14476, equation 13)
  // INVALID_ARGUMENT (reason BAD_PATTERN) naming the key.
  static absl::StatusOr<RewardRegistry> Create(const RewardParameters& parameters);

  // ALREADY_EXISTS (reason REWARD_EXISTS) if the name is taken.
  absl::Status Register(const std::string& name, RewardFunction function, bool reads_text = false);
  // NOT_FOUND (reason UNKNOWN_REWARD) naming those that are known. The pointer is good for the registry's life.
  absl::StatusOr<const Reward*> Find(const std::string& name) const;

 private:
  std::map<std::string, Reward> rewards_;
};

}  // namespace syncopate::rollouter
