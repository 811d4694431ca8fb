#pragma once

#include <cstdint>

namespace syncopate::rollouter {

// How many sequences may run at once, so that those that run find blocks to grow into. It follows the share of blocks
// that running sequences use: above kTrimAbove nobody may start until so many have ended that the share has fallen, and
// no more may run after that than ran then; below kGrowBelow one more may run with each plan. In between, whoever ends
// makes room for another. Nobody is stopped by it: sequences make room only when blocks are out, and that they had to is
// the strongest sign that too many ran.
//
// It starts without a limit: while memory is ample, it is never noticed. Pure; not thread-safe.
class ConcurrencyLimit {
 public:
  static constexpr double kGrowBelow = 0.6;
  static constexpr double kTrimAbove = 0.8;

  explicit ConcurrencyLimit(int64_t most) : most_(most), limit_(most) {}

  // What one plan begins with: the share of blocks in use, 0 to 1, and how many sequences run.
  void Follow(double usage, int64_t running);
  // `running` are left after sequences had to make room.
  void NotePreemption(int64_t running);

  // Whether `samples` more may start beside `running`. If nothing runs they may, however many they are. One that may not
  // lets the limit grow.
  bool Admits(int64_t running, int64_t samples);
  int64_t limit() const { return limit_; }

 private:
  void TrimTo(int64_t running);

  const int64_t most_;
  int64_t limit_;
  bool held_somebody_back_ = false;  // since the last Follow()
};

}  // namespace syncopate::rollouter
