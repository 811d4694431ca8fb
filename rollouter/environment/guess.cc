#include "rollouter/environment/guess.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/philox.h"
#include "rollouter/reward/math_verdict.h"
#include "rollouter/reward/reward.h"

namespace syncopate::rollouter {
namespace {

constexpr char kHigherText[] = "higher";
constexpr char kLowerText[] = "lower";

// The number that a text ends with; 0 if that is no number of the game.
int32_t ReadNumber(const std::string& text) {
  const std::optional<std::string> last = FinalNumber(text);
  int32_t number = 0;
  if (!last.has_value() || !absl::SimpleAtoi(*last, &number)) return 0;
  return number >= 1 && number <= kGuessNumbers ? number : 0;
}

class Guess final : public EnvironmentGame {
 public:
  explicit Guess(int32_t number) : number_(number) {}

  absl::Status Reset(uint64_t seed) override {
    if (number_ == 0) number_ = 1 + static_cast<int32_t>(Philox4x32(seed, 0)[0] % kGuessNumbers);
    return absl::OkStatus();
  }

  absl::StatusOr<EnvironmentMessage> Step(const std::string& action) override {
    const int32_t guess = ReadNumber(action);
    if (guess == number_) return EnvironmentMessage{.text = "right", .reward = 1.0f, .done = true};
    if (guess == 0) {
      return EnvironmentMessage{.text = absl::StrCat("no number from 1 to ", kGuessNumbers), .reward = kWrongGuess};
    }
    return EnvironmentMessage{.text = guess < number_ ? kHigherText : kLowerText, .reward = kWrongGuess};
  }

 private:
  int32_t number_;  // 0: drawn at the reset
};

}  // namespace

std::string RenderGuess(const std::vector<int32_t>& tokens) {
  std::string text;
  for (int32_t token : tokens) {
    if (token >= 0 && token < guess_tokens::kNumbers) absl::StrAppend(&text, text.empty() ? "" : " ", token + 1);
  }
  return text;
}

std::vector<int32_t> EncodeGuess(const std::string& text) {
  if (text == kHigherText) return {guess_tokens::kHigher};
  if (text == kLowerText) return {guess_tokens::kLower};
  return {guess_tokens::kNoNumber};
}

absl::StatusOr<std::unique_ptr<EnvironmentGame>> MakeGuess(const std::string& row_json) {
  SYNCOPATE_ASSIGN_OR_RETURN(const RewardRow row, ParseRewardRow(row_json));
  if (!row.has_truth) return std::make_unique<Guess>(0);
  const int32_t number = ReadNumber(row.truth);
  if (number > 0) return std::make_unique<Guess>(number);
  return Error(absl::StatusCode::kInvalidArgument, "BAD_ROW",
               absl::StrCat("the row's answer is no number from 1 to ", kGuessNumbers, ": ", row.truth.substr(0, 100)));
}

}  // namespace syncopate::rollouter
