#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/status.h"
#include "base/trajectory.h"
#include "rollouter/engine/generation.h"
#include "rollouter/trajectory/lease_book.h"

namespace syncopate::rollouter {

// The engine's request for a lease, under the name `id`: sample i draws with SampleSeed(lease.seed, i). Evaluation
// holds installs back, so that all of its tokens come from one version.
GenerationRequest RequestFor(const Lease& lease, const std::string& id);

// What an engine with good weights always gives: OK if every log-probability is finite and at most 0. Else INTERNAL
// (reason BAD_LOGPROB) naming the token: numbers of the model's have overflowed, and nothing that was drawn from them
// means anything.
absl::Status CheckLogProbs(absl::Span<const float> logprobs);

// Collects the n samples of one lease and gives the finished group away, whole or not at all, its rewards not yet set.
// Runs on the engine's thread.
class GroupAssembly final : public GenerationSink {
 public:
  // The group, its samples in order; or
  //   ABORTED (reason GROUP_ABORTED)        a sample was ended early
  //   ABORTED (reason WRONG_VERSION)        evaluation: a token is not of the version that was asked for
  //   INTERNAL (reason BAD_LOGPROB)         a log-probability is not finite
  using Done = std::function<void(absl::StatusOr<TrajectoryGroup>)>;

  // `member` makes the group. `done` is called once, on the engine's thread, by the last sample; it must not block and
  // must not call the engine. `made` counts the tokens of all samples.
  GroupAssembly(Lease lease, const MemberId& member, Done done, std::shared_ptr<TokenCount> made);

  bool OnToken(int32_t, int32_t, float, const PolicyVersion&, const std::vector<TokenLogProb>&) override {
    made_->fetch_add(1, std::memory_order_relaxed);
    return true;
  }
  void OnFinished(int32_t sample, Trajectory trajectory) override;

 private:
  absl::StatusOr<TrajectoryGroup> Finish();

  const Lease lease_;
  const Done done_;
  const std::shared_ptr<TokenCount> made_;
  TrajectoryGroup group_;
  int32_t missing_;
};

}  // namespace syncopate::rollouter
