#pragma once

#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "base/trajectory.h"

namespace syncopate::rollouter {

// The tokens of one lease's samples that the trainer has not been told yet. The engine's thread adds them, the thread
// that sends heartbeats takes them. Thread-safe; does not block, but for the short time of another call.
class AnswerReports {
 public:
  // `begins`: the tokens that each sample has before the lease's first.
  explicit AnswerReports(const std::vector<int32_t>& begins);

  void OnToken(int32_t sample, int32_t token, float logprob, const PolicyVersion& version);
  // The sample has ended by itself; one that was aborted may be continued.
  void OnFinished(int32_t sample, FinishReason finish);

  // Takes what each sample has made since it was last taken: all of it of a sample that has ended, and all but the
  // newest token of another, if that is at least `least` tokens. So tokens that are taken without a finish are not a
  // whole answer.
  std::vector<AnswerPart> Take(int64_t least);

 private:
  Mutex mutex_;
  std::vector<AnswerPart> unreported_ ABSL_GUARDED_BY(mutex_);  // one for each sample
};

}  // namespace syncopate::rollouter
