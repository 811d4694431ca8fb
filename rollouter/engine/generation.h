#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/trajectory.h"

namespace syncopate::rollouter {

// One prompt and one sequence per seed; the prompt is prefilled once for all of them. What a sequence produces depends
// on the prompt, the sampling, its seed and the weights, never on who shares the batch.
struct GenerationRequest {
  std::string id;  // unique among the requests under way; names it for Abort
  std::vector<int32_t> prompt_ids;
  SamplingParams sampling;
  std::vector<uint64_t> seeds;
  // An install waits until this request has ended, so that all of its tokens come from one policy version
  // (evaluation). Such requests must be short: a weight sync has a deadline.
  bool holds_install = false;
  // Who starts first when there is no room for all: higher priorities, then sooner deadlines, then whoever came first.
  // A deadline ends nothing.
  int32_t priority = 0;
  absl::Time deadline = absl::InfiniteFuture();
  absl::Time arrived = absl::InfiniteFuture();  // when it was asked for; infinite: when the engine gets it
};

// Receives what one request produces. Called on the engine's thread, between decode steps: must not block and must not
// call back into the engine.
class GenerationSink {
 public:
  virtual ~GenerationSink() = default;
  // Whether the sample goes on: false ends it with this token (finish kStop). What was launched beyond it is dropped
  // and not counted. `top`: the likeliest tokens if the sampling asks for them, else empty.
  virtual bool OnToken(int32_t sample, int32_t token, float logprob, const PolicyVersion& version,
                       const std::vector<TokenLogProb>& top) {
    return true;
  }
  // Exactly once per sample, in any order of samples. finish is kAborted if the request was ended early; the tokens
  // made until then are in it. The reward is not set.
  virtual void OnFinished(int32_t sample, Trajectory trajectory) = 0;
};

}  // namespace syncopate::rollouter
