#include "rollouter/engine/engine_commands.h"

#include "base/status.h"
#include "model/torch_error.h"
#include "rollouter/engine/engine_backend.h"

namespace syncopate::rollouter {
namespace {

// The deadline covers the end of a weight sync on a follower and the copies of its keys and values to host memory.
constexpr absl::Duration kObeyedWithin = absl::Seconds(30);

class LeadingRunner final : public ModelRunner {
 public:
  LeadingRunner(std::unique_ptr<ModelRunner> runner, EngineFollowers* followers)
      : runner_(std::move(runner)), followers_(followers) {}

  Capacity capacity() const override { return runner_->capacity(); }
  int64_t kv_bytes() const override { return runner_->kv_bytes(); }
  int64_t host_kv_bytes() const override { return runner_->host_kv_bytes(); }
  int64_t buffer_bytes() const override { return runner_->buffer_bytes(); }
  void BindThread() override { runner_->BindThread(); }
  void UnbindThread() override { runner_->UnbindThread(); }
  absl::Status ReleaseBlocks() override {
    SYNCOPATE_RETURN_IF_ERROR(runner_->ReleaseBlocks());
    return followers_->Send({.kind = EngineCommand::Kind::kReleaseBlocks});
  }
  absl::Status RestoreBlocks() override {
    // This rank restores first: if it has too little memory, the other ranks stay unchanged.
    SYNCOPATE_RETURN_IF_ERROR(runner_->RestoreBlocks());
    return followers_->Send({.kind = EngineCommand::Kind::kRestoreBlocks});
  }
  absl::StatusOr<Ticket> Launch(const StepPlan& plan) override {
    // The followers get the plan first, so that they begin while this rank queues its own.
    SYNCOPATE_RETURN_IF_ERROR(followers_->Send({.kind = EngineCommand::Kind::kPlan, .plan = plan}));
    return runner_->Launch(plan);
  }
  absl::StatusOr<StepResult> Await(const Ticket& ticket) override { return runner_->Await(ticket); }
  absl::Status Synchronize() override { return runner_->Synchronize(); }

 private:
  const std::unique_ptr<ModelRunner> runner_;
  EngineFollowers* const followers_;
};

// An operation that fails here changes nothing on any rank, so the followers only get operations that have succeeded.
class LeadingArenas final : public WeightArenas {
 public:
  LeadingArenas(WeightArenas* arenas, EngineFollowers* followers) : arenas_(arenas), followers_(followers) {}

  char* shadow() override { return arenas_->shadow(); }
  const char* live() const override { return arenas_->live(); }
  int64_t bytes() const override { return arenas_->bytes(); }
  bool in_place() const override { return arenas_->in_place(); }
  const model::TransformerWeights& weights() const override { return arenas_->weights(); }
  absl::Status Exchange(const PolicyVersion& version, uint64_t digest, absl::Duration deadline) override {
    SYNCOPATE_RETURN_IF_ERROR(arenas_->Exchange(version, digest, deadline));
    return followers_->Send({.kind = EngineCommand::Kind::kExchange, .version = version, .digest = digest});
  }
  absl::Status BeginOverwrite(const PolicyVersion& version) override {
    SYNCOPATE_RETURN_IF_ERROR(arenas_->BeginOverwrite(version));
    return followers_->Send({.kind = EngineCommand::Kind::kBeginInPlace, .version = version});
  }
  int32_t adapter_sets() const override { return arenas_->adapter_sets(); }
  const model::TransformerWeights& weights_of(int32_t set) const override { return arenas_->weights_of(set); }
  void ChooseShadow(int32_t set) override {
    arenas_->ChooseShadow(set);
    // A rank that is lost ends the replica with the next plan.
    followers_->Send({.kind = EngineCommand::Kind::kChooseShadow, .set = set}).IgnoreError();
  }
  int32_t shadow_set() const override { return arenas_->shadow_set(); }
  absl::Status CopyLive(const std::vector<ByteRange>& ranges) override { return arenas_->CopyLive(ranges); }
  absl::Status Release(bool keep_live) override {
    SYNCOPATE_RETURN_IF_ERROR(arenas_->Release(keep_live));
    return followers_->Send({.kind = EngineCommand::Kind::kReleaseWeights, .keep_live = keep_live});
  }
  absl::Status Restore() override {
    SYNCOPATE_RETURN_IF_ERROR(arenas_->Restore());
    return followers_->Send({.kind = EngineCommand::Kind::kRestoreWeights});
  }
  absl::StatusOr<std::unique_ptr<synchronizer::ShadowCheck>> BeginCheck(
      synchronizer::ShadowContents contents) override {
    return arenas_->BeginCheck(std::move(contents));
  }

 private:
  WeightArenas* const arenas_;
  EngineFollowers* const followers_;
};

class LeadingBackend final : public EngineBackend {
 public:
  LeadingBackend(std::shared_ptr<EngineBackend> backend, EngineFollowers* followers)
      : backend_(std::move(backend)), followers_(followers), arenas_(&backend_->arenas(), followers) {}

  at::Device device() const override { return backend_->device(); }
  DType dtype() const override { return backend_->dtype(); }
  WeightArenas& arenas() override { return arenas_; }
  int64_t kv_block_bytes() const override { return backend_->kv_block_bytes(); }
  int64_t prefill_tokens(bool deterministic) const override { return backend_->prefill_tokens(deterministic); }
  absl::StatusOr<std::unique_ptr<ModelRunner>> MakeRunner(const RunnerOptions& options) override {
    // The followers get the command first: runners of several ranks may have to be created at the same time.
    SYNCOPATE_RETURN_IF_ERROR(followers_->Send({.kind = EngineCommand::Kind::kMakeRunner, .runner = options}));
    SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<ModelRunner> runner, backend_->MakeRunner(options));
    return std::make_unique<LeadingRunner>(std::move(runner), followers_);
  }
  absl::Status AwaitRanks() override { return followers_->AwaitObeyed(kObeyedWithin); }

 private:
  const std::shared_ptr<EngineBackend> backend_;
  EngineFollowers* const followers_;
  LeadingArenas arenas_;
};

}  // namespace

std::shared_ptr<EngineBackend> MakeLeadingBackend(std::shared_ptr<EngineBackend> backend, EngineFollowers* followers) {
  return std::make_shared<LeadingBackend>(std::move(backend), followers);
}

FollowingEngine::FollowingEngine(std::shared_ptr<EngineBackend> backend) : backend_(std::move(backend)) {}

FollowingEngine::~FollowingEngine() {
  if (runner_ != nullptr) runner_->UnbindThread();
}

absl::Status FollowingEngine::Obey(const EngineCommand& command) {
  try {
    return Perform(command);
  } catch (const std::exception& error) {
    return model::TorchError(error, "this rank cannot go on");
  }
}

absl::Status FollowingEngine::Perform(const EngineCommand& command) {
  if (command.kind == EngineCommand::Kind::kMakeRunner) {
    SYNCOPATE_ASSIGN_OR_RETURN(runner_, backend_->MakeRunner(command.runner));
    runner_->BindThread();
    return absl::OkStatus();
  }
  if (runner_ == nullptr) {
    return Error(absl::StatusCode::kInternal, "RANK_MISMATCH", "rank 0 has a plan before there is a runner");
  }
  if (command.kind == EngineCommand::Kind::kPlan) return Launch(command.plan);
  if (command.kind == EngineCommand::Kind::kExchange && backend_->arenas().adapter_sets() > 0) {
    // Plans in progress go on with the adapter set that they name.
    SYNCOPATE_RETURN_IF_ERROR(backend_->arenas().Exchange(command.version, command.digest, absl::InfiniteDuration()));
    serving_ = command.version;
    return absl::OkStatus();
  }
  // Every other command changes weights or blocks, which plans in progress may still read.
  SYNCOPATE_RETURN_IF_ERROR(Synchronize());
  switch (command.kind) {
    case EngineCommand::Kind::kExchange:
      SYNCOPATE_RETURN_IF_ERROR(backend_->arenas().Exchange(command.version, command.digest, absl::InfiniteDuration()));
      serving_ = command.version;
      return absl::OkStatus();
    case EngineCommand::Kind::kBeginInPlace:
      return backend_->arenas().BeginOverwrite(command.version);
    case EngineCommand::Kind::kReleaseWeights:
      room_ = absl::OkStatus();
      return backend_->arenas().Release(command.keep_live);
    case EngineCommand::Kind::kRestoreWeights:
      return KeepNoRoom(backend_->arenas().Restore());
    case EngineCommand::Kind::kReleaseBlocks:
      SYNCOPATE_RETURN_IF_ERROR(runner_->ReleaseBlocks());
      EmptyCache(*backend_);
      return absl::OkStatus();
    case EngineCommand::Kind::kRestoreBlocks:
      return KeepNoRoom(runner_->RestoreBlocks());
    case EngineCommand::Kind::kChooseShadow:
      backend_->arenas().ChooseShadow(command.set);
      return absl::OkStatus();
    case EngineCommand::Kind::kMakeRunner:
    case EngineCommand::Kind::kPlan:
      break;
  }
  return Error(absl::StatusCode::kInternal, "RANK_MISMATCH", "rank 0 orders what this build does not know");
}

int64_t FollowingEngine::device_bytes() const {
  const int64_t blocks = runner_ != nullptr ? runner_->kv_bytes() + runner_->buffer_bytes() : 0;
  return backend_->arenas().bytes() + blocks;
}

absl::Status FollowingEngine::KeepNoRoom(const absl::Status& restored) {
  if (!absl::IsResourceExhausted(restored)) return restored;
  room_.Update(Error(absl::StatusCode::kResourceExhausted, "NO_ROOM", restored.message()));
  return absl::OkStatus();
}

absl::Status FollowingEngine::Launch(const StepPlan& plan) {
  // The oldest plans are awaited first, because a runner accepts only a limited number of plans.
  SYNCOPATE_RETURN_IF_ERROR(AwaitLaunched(static_cast<size_t>(runner_->capacity().plans_under_way) - 1));
  SYNCOPATE_ASSIGN_OR_RETURN(const ModelRunner::Ticket ticket, runner_->Launch(plan));
  launched_.push_back(ticket);
  ++plans_;
  return absl::OkStatus();
}

absl::Status FollowingEngine::AwaitLaunched(size_t most) {
  while (launched_.size() > most) {
    SYNCOPATE_RETURN_IF_ERROR(runner_->Await(launched_.front()).status());
    launched_.pop_front();
  }
  return absl::OkStatus();
}

absl::Status FollowingEngine::Synchronize() {
  SYNCOPATE_RETURN_IF_ERROR(AwaitLaunched(0));
  return runner_->Synchronize();
}

}  // namespace syncopate::rollouter
