#pragma once

#include <cstdint>

namespace syncopate::rollouter {

// Limits how many sequences run at once, so that running sequences find blocks to grow into. The limit follows the
// share of blocks in use. Above kTrimAbove the limit drops to the number that runs now, so no sequence starts until one
// has ended. Below kGrowBelow the limit grows by one with each plan at which Admits() refused a start. In between, each
// sequence that ends makes room for another. The limit never stops a running sequence: sequences are preempted only
// when blocks run out, and a preemption is the strongest sign that too many ran.
//
// At the start there is no limit beyond `most`, so with ample memory it has no effect. Pure; not thread-safe.
class ConcurrencyLimit {
 public:
  static constexpr double kGrowBelow = 0.6;
  static constexpr double kTrimAbove = 0.8;

  explicit ConcurrencyLimit(int64_t most) : most_(most), limit_(most) {}

  // Call at the beginning of each plan. `usage`: the share of blocks in use, 0 to 1. `running`: the number of running
  // sequences.
  void Follow(double usage, int64_t running);
  // Call after preemptions; `running` sequences are left.
  void NotePreemption(int64_t running);

  // Whether `samples` more sequences may start beside `running`. If nothing runs, any number may start. A refusal lets
  // the limit grow.
  bool Admits(int64_t running, int64_t samples);
  int64_t limit() const { return limit_; }

 private:
  void TrimTo(int64_t running);

  const int64_t most_;
  int64_t limit_;
  bool has_refused_ = false;  // Admits() refused a start since the last Follow()
};

}  // namespace syncopate::rollouter
