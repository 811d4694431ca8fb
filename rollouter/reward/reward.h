#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/trajectory.h"

namespace syncopate::rollouter {

// Decodes the tokens of an answer to valid UTF-8 without special tokens; the owner of the tokenizer provides it. Pure,
// safe from any thread.
using TextDecoder = std::function<std::string(const std::vector<int32_t>&)>;

// The reference answer of one row of a data file: the text under "ground_truth", where the trainer stores it whatever
// the file calls it. A number or a boolean is kept as JSON text.
struct RewardRow {
  bool has_truth = false;
  std::string truth = {};
};
// Parses one row. INVALID_ARGUMENT (reason BAD_ROW) if the text is not a JSON object. An empty text gives a row without
// a truth.
absl::StatusOr<RewardRow> ParseRewardRow(const std::string& row_json);

// The input of a reward. If a stop token was generated, it is the last token of `response`.
struct RewardInput {
  const std::vector<int32_t>& prompt_ids;
  const std::vector<int32_t>& answer_ids;  // the reference answer with its stop token; may be empty
  const std::vector<int32_t>& response;    // the generated tokens
  std::string text = {};                   // `response` decoded; "" if the reward reads no text
  RewardRow row = {};
  int32_t max_new_tokens = 0;  // the largest length that `response` could have reached
  float environment = 0;       // what the environment gave in all turns; 0 without one
};

struct RewardValue {
  float value = 0;
  bool undecided = false;  // the reward could not decide: `value` counts only if no judge decides
  std::string extracted =
      {};  // the answer that it found in the text, as it compares it; empty: none. For a majority's votes
};

// A pure function of its input, safe to call from any thread. An error means a fault of the data or the code, not of
// the policy: the answer then gets no reward at all.
using RewardFunction = std::function<absl::StatusOr<RewardValue>(const RewardInput&)>;

// Settings of the built-in rewards.
struct RewardParameters {
  std::string pattern = {};     // used by `regex`
  std::string format = {};      // used by `format`
  int64_t overlong_buffer = 0;  // used by `overlong`, in tokens
};

// Rewards by name. A lease names its reward; the rollouter that generates also scores. The registry is filled before it
// is passed to a `Scorer` and read only after that, so reading needs no lock.
class RewardRegistry {
 public:
  struct Reward {
    RewardFunction function;
    bool reads_text = false;
  };

  // Returns the rewards that need no parameters:
  //   environment   what the environment gave
  //   dense         share of the answer's positions that the response has right
  //   exact         1 if the response equals the answer, else 0
  //   match         1 if the text behind the last </think> equals the row's truth; blanks around both do not count
  //   final_number  1 if the number behind "####", or else the last number, equals the truth's number
  //   math          1 if the last \boxed{} means the same as the truth; undecided if that cannot be computed
  static RewardRegistry BuiltIn();
  // Returns the rewards of BuiltIn and those that `parameters` enables:
  //   regex         1 if `pattern` is found and, if it has a group, group 1 of its last match equals the truth
  //   format        1 if `format` matches the whole text
  //   overlong      0 while `overlong_buffer` tokens are left of max_new_tokens, from there linearly down to -1 at
  //                 max_new_tokens (DAPO, arXiv 2503.14476, equation 13)
  // INVALID_ARGUMENT (reason BAD_PATTERN) naming the configuration key.
  static absl::StatusOr<RewardRegistry> Create(const RewardParameters& parameters);

  // ALREADY_EXISTS (reason REWARD_EXISTS) if the name is taken.
  absl::Status Register(const std::string& name, RewardFunction function, bool reads_text = false);
  // NOT_FOUND (reason UNKNOWN_REWARD) with the list of known names. The pointer stays valid while the registry exists.
  absl::StatusOr<const Reward*> Find(const std::string& name) const;

 private:
  std::map<std::string, Reward> rewards_;
};

}  // namespace syncopate::rollouter
