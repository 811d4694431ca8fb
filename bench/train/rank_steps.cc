#include "bench/train/rank_steps.h"

#include <barrier>
#include <memory>
#include <thread>
#include <utility>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "bench/measure/figures.h"

namespace syncopate::bench {
namespace {

// A communicator whose collectives can be left out.
class SilenceableRanks final : public Communicator {
 public:
  explicit SilenceableRanks(std::unique_ptr<Communicator> ranks) : ranks_(std::move(ranks)) {}
  void SetSilent(bool silent) { silent_ = silent; }

  int32_t rank() const override { return ranks_->rank(); }
  int32_t world() const override { return ranks_->world(); }
  absl::Status Finish() override { return ranks_->Finish(); }
  void Abort(const std::string& why) override { ranks_->Abort(why); }
  absl::Status Perform(const Collective& call, void* in, void* out) override {
    return silent_ ? absl::OkStatus() : ranks_->Perform(call, in, out);
  }

 private:
  const std::unique_ptr<Communicator> ranks_;
  bool silent_ = false;
};

// The next action of all ranks, chosen by rank 0.
enum class Next { kStep, kSilentStep, kDigest, kEnd };

struct Times {
  std::vector<double> ms, device_ms, optimizer_ms, silent_ms, digest_ms;
};

class RankRun {
 public:
  RankRun(const RankSteps& asked, const RankFactory& make_ranks)
      : asked_(asked), make_ranks_(make_ranks), meet_(asked.world), statuses_(static_cast<size_t>(asked.world)) {}

  absl::StatusOr<Times> Run() {
    std::vector<std::thread> threads;
    for (int32_t rank = 1; rank < asked_.world; ++rank) threads.emplace_back([this, rank] { RunRank(rank); });
    RunRank(0);
    for (std::thread& thread : threads) thread.join();
    for (const absl::Status& status : statuses_) SYNCOPATE_RETURN_IF_ERROR(status);
    return times_;
  }

 private:
  void RunRank(int32_t rank) {
    statuses_[static_cast<size_t>(rank)] = rank == 0 ? Lead() : Follow(rank);
    if (rank == 0) next_ = Next::kEnd;
    // The others go on without this rank; else a failure would leave them waiting at the barrier for ever.
    meet_.arrive_and_drop();
  }

  // If a rank's communicator or policy cannot be made, the others wait until their deadlines.
  struct Place {
    std::unique_ptr<SilenceableRanks> ranks;
    std::unique_ptr<trainer::PolicyTrainer> policy;
  };
  absl::StatusOr<Place> Open(int32_t rank) {
    Place place;
    SYNCOPATE_ASSIGN_OR_RETURN(auto ranks, make_ranks_(rank));
    place.ranks = std::make_unique<SilenceableRanks>(std::move(ranks));
    trainer::PolicyTrainer::Options options = asked_.options(rank);
    options.mesh = *place.ranks;
    SYNCOPATE_ASSIGN_OR_RETURN(place.policy, trainer::PolicyTrainer::Create(options));
    return place;
  }

  absl::StatusOr<trainer::StepFigures> Step(Place& place, Next next) {
    place.ranks->SetSilent(next == Next::kSilentStep);
    if (next == Next::kDigest) {
      SYNCOPATE_RETURN_IF_ERROR(place.policy->Digest().status());
      return trainer::StepFigures();
    }
    return place.policy->Step(asked_.batch);
  }

  absl::Status Follow(int32_t rank) {
    SYNCOPATE_ASSIGN_OR_RETURN(Place place, Open(rank));
    while (true) {
      meet_.arrive_and_wait();
      if (next_ == Next::kEnd) return absl::OkStatus();
      SYNCOPATE_RETURN_IF_ERROR(Step(place, next_).status());
      meet_.arrive_and_wait();  // else `next_` would change while it is read
    }
  }

  absl::Status Lead() {
    SYNCOPATE_ASSIGN_OR_RETURN(Place place, Open(0));
    const absl::Time until = Clock::Real()->Now() + absl::Seconds(asked_.warm_seconds);
    do {
      SYNCOPATE_RETURN_IF_ERROR(LeadStep(place, Next::kStep).status());
    } while (Clock::Real()->Now() < until);
    for (int i = 0; i < asked_.steps; ++i) {
      SYNCOPATE_ASSIGN_OR_RETURN(const double ms, LeadStep(place, Next::kStep));
      times_.ms.push_back(ms);
      times_.device_ms.push_back((last_.forward_backward_seconds + last_.optimizer_seconds) * 1e3);
      times_.optimizer_ms.push_back(last_.optimizer_seconds * 1e3);
    }
    // The cost of the digest in each step's line of metrics.jsonl, which is added to the step.
    for (int i = 0; i < asked_.steps; ++i) {
      SYNCOPATE_ASSIGN_OR_RETURN(const double ms, LeadStep(place, Next::kDigest));
      times_.digest_ms.push_back(ms);
    }
    for (int i = 0; i < asked_.steps + 1; ++i) {
      SYNCOPATE_ASSIGN_OR_RETURN(const double ms, LeadStep(place, Next::kSilentStep));
      // These steps do not communicate: the difference to the others is what communication adds.
      if (i > 0) times_.silent_ms.push_back(ms);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<double> LeadStep(Place& place, Next next) {
    next_ = next;
    meet_.arrive_and_wait();
    const absl::Time begin = Clock::Real()->Now();
    absl::StatusOr<trainer::StepFigures> metrics = Step(place, next);
    const double ms = absl::ToDoubleMilliseconds(Clock::Real()->Now() - begin);
    meet_.arrive_and_wait();
    SYNCOPATE_RETURN_IF_ERROR(metrics.status());
    last_ = *metrics;
    return ms;
  }

  const RankSteps& asked_;
  const RankFactory& make_ranks_;
  std::barrier<> meet_;      // before and after each step
  Next next_ = Next::kStep;  // set by rank 0, between steps
  std::vector<absl::Status> statuses_;
  // Rank 0's figures.
  trainer::StepFigures last_;
  Times times_;
};

}  // namespace

absl::StatusOr<nlohmann::json> MeasureRankSteps(const RankSteps& asked, const RankFactory& make_ranks) {
  SYNCOPATE_ASSIGN_OR_RETURN(const Times times, RankRun(asked, make_ranks).Run());
  const double ms = Median(times.ms), silent_ms = Median(times.silent_ms);
  return nlohmann::json{{"ms", ms},
                        {"device_ms", Median(times.device_ms)},
                        {"optimizer_ms", Median(times.optimizer_ms)},
                        {"silent_ms", silent_ms},
                        {"digest_ms", Median(times.digest_ms)},
                        {"exposed_share", 1 - silent_ms / ms}};
}

}  // namespace syncopate::bench
