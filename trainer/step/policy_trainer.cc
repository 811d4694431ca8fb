#include "trainer/step/policy_trainer.h"

#include <ATen/Parallel.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "model/torch_error.h"
#include "trainer/actor/actor.h"
#include "trainer/actor/reference_policy.h"
#include "trainer/step/train_step.h"

namespace syncopate::trainer {
namespace {

// A tensor as the host reads it: itself on the CPU, else a copy that is made when it is first asked for.
class HostView {
 public:
  const void* Of(const at::Tensor& tensor) {
    if (tensor.device().is_cpu()) return tensor.data_ptr();
    if (!copy_.defined()) copy_ = at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
    if (!fresh_) copy_.copy_(tensor);
    fresh_ = true;
    return copy_.data_ptr();
  }
  // The same of an arena that ranks hold in shards: rank 0 gets it, the others null; all ask.
  absl::StatusOr<const void*> Gather(Actor& actor, const at::Tensor& arena, Communicator& ranks) {
    if (fresh_) return ranks.rank() == 0 ? copy_.data_ptr() : nullptr;
    const int64_t elements = actor.manifest().arena_bytes() / static_cast<int64_t>(sizeof(float));
    if (ranks.rank() == 0 && !copy_.defined()) copy_ = at::empty({elements}, at::kFloat);
    SYNCOPATE_RETURN_IF_ERROR(actor.Gather(arena, ranks.rank() == 0 ? copy_.data_ptr<float>() : nullptr));
    fresh_ = true;
    return ranks.rank() == 0 ? copy_.data_ptr() : nullptr;
  }
  // The tensor is about to change.
  void Expire() { fresh_ = false; }

 private:
  at::Tensor copy_;
  bool fresh_ = false;
};

DType DefaultDType(const std::string& device) {
  return at::Device(device).is_cpu() ? DType::kFloat32 : DType::kBFloat16;
}

// Parameters, gradients and two moments, the copy that computes, and the reference policy.
int64_t StateBytes(const Manifest& manifest, const PolicyTrainer::Options& options) {
  const DType compute = options.compute_dtype.value_or(DefaultDType(options.device));
  const int64_t copy = compute == DType::kBFloat16 ? manifest.arena_bytes() / 2 : 0;
  const int64_t reference = copy > 0 ? copy : manifest.arena_bytes();
  return 4 * manifest.arena_bytes() + copy + (options.step.loss.needs_reference() ? reference : 0);
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
        step(actor, ranks, options.step, reference.get()) {}

  absl::StatusOr<const void*> OnHost(HostView& view, const at::Tensor& arena) {
    if (ranks.world() > 1) return view.Gather(actor, arena, ranks);
    return view.Of(arena);
  }

  void ExpireHostViews() {
    for (HostView* view : {&parameters, &first_moment, &second_moment}) view->Expire();
  }

  const DType compute;
  SingleRank single;
  Communicator& ranks;
  Actor actor;
  const std::unique_ptr<const ReferencePolicy> reference;
  TrainStep step;
  HostView parameters, first_moment, second_moment;
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
    return std::unique_ptr<PolicyTrainer>(new PolicyTrainer(std::make_unique<Core>(options, manifest)));
  } catch (const std::exception& error) {
    return model::TorchError(error, absl::StrCat("parameters, gradients and optimizer state need ",
                                                 StateBytes(manifest, options) >> 20, " MiB on ", options.device));
  }
}

const Manifest& PolicyTrainer::manifest() const { return core_->actor.manifest(); }

absl::StatusOr<TrainStepMetrics> PolicyTrainer::Step(const std::vector<const TrajectoryGroup*>& groups, int64_t step) {
  core_->ExpireHostViews();
  try {
    return core_->step.Run(groups, step);
  } catch (const std::exception& error) {
    return model::TorchError(error, "the training step has failed");
  }
}

absl::StatusOr<const void*> PolicyTrainer::parameters() const {
  try {
    return core_->OnHost(core_->parameters, core_->actor.parameters());
  } catch (const std::exception& error) {
    return model::TorchError(error, "the weights cannot be copied to the host");
  }
}

absl::StatusOr<Policy::State> PolicyTrainer::state() const {
  const Actor& actor = core_->actor;
  try {
    SYNCOPATE_ASSIGN_OR_RETURN(const void* weights, core_->OnHost(core_->parameters, actor.parameters()));
    SYNCOPATE_ASSIGN_OR_RETURN(const void* first, core_->OnHost(core_->first_moment, actor.first_moment()));
    SYNCOPATE_ASSIGN_OR_RETURN(const void* second, core_->OnHost(core_->second_moment, actor.second_moment()));
    return State{weights, first, second, actor.updates()};
  } catch (const std::exception& error) {
    return model::TorchError(error, "the optimizer's state cannot be copied to the host");
  }
}

absl::Status PolicyTrainer::Restore(const State& state) {
  core_->ExpireHostViews();
  try {
    core_->actor.Restore(state.parameters, state.first_moment, state.second_moment, state.updates);
    return absl::OkStatus();
  } catch (const std::exception& error) {
    return model::TorchError(error, "the checkpoint cannot be copied to the device");
  }
}

const void* PolicyTrainer::device_parameters() const { return core_->actor.parameters().data_ptr(); }

DType PolicyTrainer::compute_dtype() const { return core_->compute; }

}  // namespace syncopate::trainer
