#include "trainer/step/policy_trainer.h"

#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "model/torch_error.h"
#include "trainer/actor/actor.h"
#include "trainer/actor/reference_policy.h"
#include "trainer/step/train_step.h"

namespace syncopate::trainer {
namespace {

DType DefaultDType(const std::string& device) {
  return at::Device(device).is_cpu() ? DType::kFloat32 : DType::kBFloat16;
}

// Parameters, gradients and two moments, the copy that computes, and the reference policy: a rank's share of them.
int64_t StateBytes(const Manifest& manifest, const PolicyTrainer::Options& options) {
  const DType compute = options.compute_dtype.value_or(DefaultDType(options.device));
  const int64_t copy = compute == DType::kBFloat16 ? manifest.arena_bytes() / 2 : 0;
  const int64_t reference = copy > 0 ? copy : manifest.arena_bytes();
  const int64_t all = 4 * manifest.arena_bytes() + copy + (options.step.loss.needs_reference() ? reference : 0);
  return all / (options.ranks == nullptr ? 1 : options.ranks->world());
}

}  // namespace

class PolicyTrainer::Core {
 public:
  Core(const Options& options, const Manifest& manifest)
      : compute(options.compute_dtype.value_or(DefaultDType(options.device))),
        ranks(options.ranks == nullptr ? single : *options.ranks),
        actor(options.model, manifest, options.optimizer, options.seed, at::Device(options.device),
              options.weights.get(), model::ScalarTypeOf(compute), &ranks),
        reference(options.step.loss.needs_reference()
                      ? std::make_unique<ReferencePolicy>(actor, options.model, model::ScalarTypeOf(compute), &ranks)
                      : nullptr),
        step(actor, ranks, options.step, reference.get()),
        supervised(actor, ranks, options.step.Supervised()) {}

  const DType compute;
  SingleRank single;
  Communicator& ranks;
  Actor actor;
  const std::unique_ptr<const ReferencePolicy> reference;
  TrainStep step;
  TrainStep supervised;
};

PolicyTrainer::PolicyTrainer(std::unique_ptr<Core> core) : core_(std::move(core)) {}
PolicyTrainer::~PolicyTrainer() = default;

absl::StatusOr<std::unique_ptr<PolicyTrainer>> PolicyTrainer::Create(const Options& options) {
  SYNCOPATE_RETURN_IF_ERROR(options.optimizer.Validate());
  SYNCOPATE_RETURN_IF_ERROR(options.step.Validate());
  SYNCOPATE_ASSIGN_OR_RETURN(Manifest manifest,
                             model::MakeManifest(options.model, DType::kFloat32, options.bucket_bytes));
  if (options.ranks != nullptr) {
    const Communicator& ranks = *options.ranks;
    SYNCOPATE_RETURN_IF_ERROR(FlatShards::Create(options.model, manifest, ranks.rank(), ranks.world()).status());
  }
  if (options.weights != nullptr) SYNCOPATE_RETURN_IF_ERROR(options.weights->CheckFinite());
  at::set_num_threads(options.threads);
  try {
    const c10::DeviceGuard guard{at::Device(options.device)};
    return std::unique_ptr<PolicyTrainer>(new PolicyTrainer(std::make_unique<Core>(options, manifest)));
  } catch (const std::exception& error) {
    return model::TorchError(error, absl::StrCat("parameters, gradients and optimizer state need ",
                                                 StateBytes(manifest, options) >> 20, " MiB on ", options.device));
  }
}

const Manifest& PolicyTrainer::manifest() const { return core_->actor.manifest(); }

absl::StatusOr<TrainStepMetrics> PolicyTrainer::Step(const std::vector<const TrajectoryGroup*>& groups, int64_t step) {
  try {
    const c10::DeviceGuard guard(core_->actor.device());
    return core_->step.Run(groups, step);
  } catch (const std::exception& error) {
    return model::TorchError(error, "the training step has failed");
  }
}

absl::StatusOr<TrainStepMetrics> PolicyTrainer::SupervisedStep(const std::vector<const TrajectoryGroup*>& groups) {
  try {
    const c10::DeviceGuard guard(core_->actor.device());
    return core_->supervised.RunSupervised(groups);
  } catch (const std::exception& error) {
    return model::TorchError(error, "the supervised step has failed");
  }
}

absl::Status PolicyTrainer::WriteTensor(PolicyPart part, size_t index, const model::ByteSink& sink) const {
  try {
    const c10::DeviceGuard guard(core_->actor.device());
    return core_->actor.WriteTensor(part, index, sink);
  } catch (const std::exception& error) {
    return model::TorchError(error, "the policy cannot be copied to the host");
  }
}

absl::Status PolicyTrainer::CopyParameters(DType dtype, void* whole) const {
  try {
    const c10::DeviceGuard guard(core_->actor.device());
    return core_->actor.CopyParameters(model::ScalarTypeOf(dtype), whole);
  } catch (const std::exception& error) {
    return model::TorchError(error, "the weights cannot be gathered");
  }
}

absl::StatusOr<uint64_t> PolicyTrainer::Digest() const {
  try {
    const c10::DeviceGuard guard(core_->actor.device());
    return core_->actor.Digest();
  } catch (const std::exception& error) {
    return model::TorchError(error, "the weights cannot be digested");
  }
}

absl::Status PolicyTrainer::CheckFinite() const {
  try {
    const c10::DeviceGuard guard(core_->actor.device());
    return core_->actor.CheckFinite();
  } catch (const std::exception& error) {
    return model::TorchError(error, "the weights cannot be looked at");
  }
}

int64_t PolicyTrainer::updates() const { return core_->actor.updates(); }

absl::Status PolicyTrainer::Restore(const PolicySource& source) {
  try {
    const c10::DeviceGuard guard(core_->actor.device());
    core_->actor.Restore(source);
    return absl::OkStatus();
  } catch (const std::exception& error) {
    return model::TorchError(error, "the checkpoint cannot be copied to the device");
  }
}

const void* PolicyTrainer::device_parameters() const { return core_->actor.parameters().data_ptr(); }

DType PolicyTrainer::compute_dtype() const { return core_->compute; }

bool PolicyTrainer::is_sharded() const { return !core_->actor.shards().is_whole(); }

}  // namespace syncopate::trainer
