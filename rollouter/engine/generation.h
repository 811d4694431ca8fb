#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/trajectory.h"

namespace syncopate::rollouter {

// One prompt, and one sequence per seed; the prompt is prefilled once for all of them. What a sequence produces depends
// only on the prompt, the sampling, its seed and the weights, not on the other sequences of its batch.
struct GenerationRequest {
  std::string id;  // unique among the active requests; names it for Abort
  std::vector<int32_t> prompt_ids;
  SamplingParams sampling;
  std::vector<uint64_t> seeds;
  // True: an install waits until this request has ended, so that all of its tokens come from one policy version
  // (evaluation). Such requests must be short, because a weight sync has a deadline.
  bool holds_install = false;
  // The order of starting when there is no room for all: higher priority, then earlier deadline, then earlier arrival.
  // A passed deadline does not end a request.
  int32_t priority = 0;
  absl::Time deadline = absl::InfiniteFuture();
  absl::Time arrived = absl::InfiniteFuture();  // when it was submitted; infinite: when the engine adds it
};

// Receives what one request produces. Called on the engine's thread, between decode steps: must not block and must not
// call the engine.
class GenerationSink {
 public:
  virtual ~GenerationSink() = default;
  // Returns whether the sample continues; false ends it with this token (finish kStop), and tokens that were already
  // launched beyond it are dropped and not counted. `top`: the likeliest tokens if the sampling asks for them, else
  // empty.
  virtual bool OnToken(int32_t sample, int32_t token, float logprob, const PolicyVersion& version,
                       const std::vector<TokenLogProb>& top) {
    return true;
  }
  // Called exactly once per sample; the samples may come in any order. `finish` is kAborted if the request was aborted;
  // the trajectory then has the tokens made until then. The reward is not set.
  virtual void OnFinished(int32_t sample, Trajectory trajectory) = 0;
};

}  // namespace syncopate::rollouter
