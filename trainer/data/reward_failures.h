#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace syncopate::trainer {

// Counts the groups whose rewards failed or succeeded since the trainer started, over all rollouters and including
// evaluations, for the status, and decides whether the run must end. A reward that could not be called (UNAVAILABLE)
// counts as neither. Plain state: the owner's lock guards it.
class RewardFailures {
 public:
  static constexpr size_t kRecent = 64;  // groups that the alarm looks at
  static constexpr size_t kFewest = 8;   // before that the alarm says nothing

  struct Figures {
    int64_t failed = 0;         // groups whose reward failed
    int64_t judged = 0;         // groups whose answers have rewards
    int64_t recent_failed = 0;  // of the last `recent` groups
    int64_t recent = 0;
    std::string first = {};  // why, a sentence of a line; "" if none has failed
    std::string last = {};
    bool alarm = false;  // at least half of the recent ones, and kFewest are there
  };

  // `most`: failures in a row, before any group was judged, that end the run; 0: none do.
  explicit RewardFailures(int64_t most) : most_(most) {}

  void AddJudged();
  void AddFailed(const absl::Status& why);  // what a rollouter says of it; may contain anything

  // Answers of some group have been judged.
  bool any_judged() const { return figures_.judged > 0; }
  // The last kRecent groups have failed, all of them.
  bool all_fail() const { return recent_.size() == kRecent && figures_.recent_failed == static_cast<int64_t>(kRecent); }
  const Figures& figures() const { return figures_; }
  // OK, or INTERNAL (reason REWARD_FAILED): no group can be judged, so the run must end.
  absl::Status verdict() const;

 private:
  void Add(bool failed);

  const int64_t most_;
  std::deque<bool> recent_;  // failed
  Figures figures_;
};

// Text of a peer as one line for people: at most `most_bytes`, well-formed, without control characters.
std::string OneLine(absl::string_view text, size_t most_bytes);

}  // namespace syncopate::trainer
