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
  // Empty, or one for each seed: tokens that the sample's answer begins with, as many as leave room for one more. They
  // count as tokens of the answer, and its trajectory has them as given ones. Not with turns.
  std::vector<std::vector<int32_t>> starts = {};
  // True: an install waits until this request has ended, so that all of its tokens come from one policy version
  // (evaluation). Such requests must be short, because a weight sync has a deadline.
  bool holds_install = false;
  // True: the base answers, without the policy's adapters. Its tokens have no version (PolicyVersion::IsNone).
  bool by_base = false;
  // Above 0: the samples have turns (GenerationSink::OnTurnEnded), `sampling.max_new_tokens` is the limit of one turn,
  // and this the limit of a sample's tokens, given ones counted.
  int64_t max_total_tokens = 0;
  bool starts_parked = false;  // with turns: each sample waits for EngineLoop::Begin()
  // The order of starting when there is no room for all: higher priority, then earlier deadline, then earlier arrival.
  // A passed deadline does not end a request.
  int32_t priority = 0;
  absl::Time deadline = absl::InfiniteFuture();
  absl::Time arrived = absl::InfiniteFuture();  // when it was submitted; infinite: when the engine adds it
};

// Receives what one request produces. Called on the engine's thread, between decode steps: must not block, and must not
// call the engine, except EngineLoop::Begin(), Extend(), Rewind() and EndParked(), which only queue.
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
  // Called when a turn has ended, by `finish` or because OnToken() returned false; only for requests with turns.
  // Returns whether the sample is parked until EngineLoop::Extend() or EndParked(); false ends it here, with `finish`.
  // `so_far` has all tokens until here.
  virtual bool OnTurnEnded(int32_t sample, FinishReason finish, const Trajectory& so_far) { return false; }
  // Called exactly once per sample; the samples may come in any order. `finish` is kAborted if the request was aborted;
  // the trajectory then has the tokens made until then. The reward is not set.
  virtual void OnFinished(int32_t sample, Trajectory trajectory) = 0;
};

}  // namespace syncopate::rollouter
