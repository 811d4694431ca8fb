#include "trainer/step/policy_trainer.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <utility>

#include "trainer/actor/actor.h"
#include "trainer/actor/rank_group.h"
#include "trainer/step/train_step.h"

namespace syncopate::trainer {

class PolicyTrainer::Core {
 public:
  Core(const Options& options, const Manifest& manifest)
      : actor(options.model, manifest, options.optimizer, options.seed, at::Device(options.device)),
        step(actor, ranks, options.step) {}

  SingleRank ranks;
  Actor actor;
  TrainStep step;
};

PolicyTrainer::PolicyTrainer(std::unique_ptr<Core> core) : core_(std::move(core)) {}
PolicyTrainer::~PolicyTrainer() = default;

absl::StatusOr<std::unique_ptr<PolicyTrainer>> PolicyTrainer::Create(const Options& options) {
  SYNCOPATE_RETURN_IF_ERROR(options.optimizer.Validate());
  SYNCOPATE_RETURN_IF_ERROR(options.step.Validate());
  SYNCOPATE_ASSIGN_OR_RETURN(Manifest manifest,
                             model::MakeManifest(options.model, DType::kFloat32, options.bucket_bytes));
  at::set_num_threads(options.threads);
  return std::unique_ptr<PolicyTrainer>(new PolicyTrainer(std::make_unique<Core>(options, manifest)));
}

const Manifest& PolicyTrainer::manifest() const { return core_->actor.manifest(); }

absl::StatusOr<TrainStepMetrics> PolicyTrainer::Step(const std::vector<const TrajectoryGroup*>& groups) {
  try {
    return core_->step.Run(groups);
  } catch (const c10::Error& error) {
    return Error(absl::StatusCode::kInternal, "TORCH", error.what_without_backtrace());
  }
}

const void* PolicyTrainer::parameters() const { return core_->actor.parameters().data_ptr(); }

Policy::State PolicyTrainer::state() const {
  const Actor& actor = core_->actor;
  return {actor.parameters().data_ptr(), actor.first_moment().data_ptr(), actor.second_moment().data_ptr(),
          actor.updates()};
}

void PolicyTrainer::Restore(const State& state) {
  core_->actor.Restore(state.parameters, state.first_moment, state.second_moment, state.updates);
}

}  // namespace syncopate::trainer
