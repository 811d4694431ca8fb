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
#include "rollouter/trajectory/answer_reports.h"
#include "rollouter/trajectory/answer_stops.h"
#include "rollouter/trajectory/lease_book.h"

namespace syncopate::rollouter {

// Returns the engine's request for `lease`, under the name `id`: sample i draws with SampleSeed(lease.seed, i). An
// evaluation request postpones installs, so that all of its tokens come from one version. Samples that the lease says
// are finished are left out: of a lease whose samples all are, the request has no seeds and must not be submitted.
GenerationRequest RequestFor(const Lease& lease, const std::string& id);

// Checks the log-probabilities of one sample. OK if every one is finite and at most 0. Otherwise INTERNAL (reason
// BAD_LOGPROB) naming the first bad token: the model's numbers have overflowed, and its samples are meaningless.
absl::Status CheckLogProbs(absl::Span<const float> logprobs);

// Takes off `group`, an answer to `lease`, the tokens with which its samples began: the trainer has them. Spans keep
// their places in the whole answer.
void TakeOffStarts(const Lease& lease, TrajectoryGroup* group);

// Collects the n samples of one lease, whole answers with the tokens they began with, and delivers the finished group,
// complete or not at all; its rewards are not set yet. Runs on the engine's thread; not thread-safe.
class GroupAssembly final : public GenerationSink {
 public:
  // Receives the group with its samples in order, or one of these errors:
  //   ABORTED (reason GROUP_ABORTED)        a sample was ended early
  //   ABORTED (reason WRONG_VERSION)        evaluation: a token is not of the version that was asked for
  //   INTERNAL (reason BAD_LOGPROB)         a log-probability is not finite or is above 0
  using Done = std::function<void(absl::StatusOr<TrajectoryGroup>)>;

  // `member` is the rollouter that generates the group. `done` is called once, on the engine's thread, by the last
  // sample; it must not block and must not call the engine. `made` counts the tokens of all samples. `stops` must
  // outlive this object. `reports` gets all tokens that are made; null: nobody wants them.
  GroupAssembly(Lease lease, const MemberId& member, Done done, std::shared_ptr<TokenCount> made,
                const StopRules* stops, std::shared_ptr<AnswerReports> reports = nullptr);

  // Delivers the group now if no sample is to be generated, and returns whether that is so. Call before the request is
  // submitted.
  bool DeliverIfFinished();

  // `sample`: its place in the request.
  bool OnToken(int32_t sample, int32_t token, float logprob, const PolicyVersion& version,
               const std::vector<TokenLogProb>& top) override;
  void OnFinished(int32_t sample, Trajectory trajectory) override;

 private:
  absl::StatusOr<TrajectoryGroup> Finish();

  const Lease lease_;
  const Done done_;
  const std::shared_ptr<TokenCount> made_;
  const std::shared_ptr<AnswerReports> reports_;
  AnswerStops stops_;
  TrajectoryGroup group_;
  std::vector<int32_t> generated_;  // by their place in the request: the samples that are generated
  int32_t missing_;
};

}  // namespace syncopate::rollouter
