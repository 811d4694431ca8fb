#include "tools/twin/engine_ranks.h"

#include <utility>

#include "ranks/thread_ranks.h"
#include "rollouter/engine/engine_backend.h"

namespace syncopate::twin {
namespace {

constexpr absl::Duration kStepDeadline = absl::Minutes(5);

}  // namespace

// A rank above 0 only receives: rank 0's command makes it exchange its weight sets.
class EngineRanks::ShadowTarget final : public synchronizer::WeightTarget {
 public:
  explicit ShadowTarget(std::shared_ptr<rollouter::EngineBackend> backend) : backend_(std::move(backend)) {}
  char* shadow() override { return backend_->arenas().shadow(); }
  absl::StatusOr<synchronizer::InstallResult> Install(const PolicyVersion&, uint64_t, absl::Duration) override {
    return synchronizer::InstallResult();
  }
  absl::StatusOr<synchronizer::InstallResult> Relabel(const PolicyVersion&, absl::Duration) override {
    return synchronizer::InstallResult();
  }

 private:
  const std::shared_ptr<rollouter::EngineBackend> backend_;
};

absl::StatusOr<std::unique_ptr<EngineRanks>> EngineRanks::Create(rollouter::EngineLoop::Options options,
                                                                 const Manifest& wire, int32_t world) {
  std::unique_ptr<EngineRanks> made(new EngineRanks(world));
  if (world > 1) {
    SYNCOPATE_ASSIGN_OR_RETURN(made->slice_, rollouter::MakeRankSlice(options.model, wire, world));
    made->communicators_ = MakeThreadRanks(world, kStepDeadline);
    std::vector<std::shared_ptr<rollouter::EngineBackend>> backends;
    for (const auto& rank : made->communicators_) {
      SYNCOPATE_ASSIGN_OR_RETURN(backends.emplace_back(),
                                 rollouter::MakeHostRankBackend(made->slice_->config, made->slice_->manifest,
                                                                /*weight_sets=*/2, rank.get()));
    }
    options.backend = rollouter::MakeLeadingBackend(backends.front(), made.get());
    for (int32_t rank = 1; rank < world; ++rank) {
      Follower follower;
      follower.backend = backends[static_cast<size_t>(rank)];
      follower.engine = std::make_unique<rollouter::FollowingEngine>(follower.backend);
      follower.target = std::make_unique<ShadowTarget>(follower.backend);
      made->followers_.push_back(std::move(follower));
    }
    {
      MutexLock lock(&made->mutex_);
      made->commands_.resize(made->followers_.size());
    }
    for (size_t i = 0; i < made->followers_.size(); ++i) {
      made->threads_.emplace_back([ranks = made.get(), i] { ranks->Follow(i); });
    }
  }
  SYNCOPATE_ASSIGN_OR_RETURN(made->engine_, rollouter::EngineLoop::Start(options));
  return made;
}

EngineRanks::~EngineRanks() {
  engine_ = nullptr;
  {
    MutexLock lock(&mutex_);
    stopped_ = true;
  }
  for (const auto& rank : communicators_) rank->Abort("the twin ends");
  for (std::thread& thread : threads_) thread.join();
}

synchronizer::WeightTarget* EngineRanks::target(int32_t rank) {
  return rank == 0 ? engine_.get() : followers_[static_cast<size_t>(rank) - 1].target.get();
}

absl::Status EngineRanks::AwaitObeyed(absl::Duration deadline) {
  MutexLock lock(&mutex_);
  auto is_done = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return done_ == sent_ || !failed_.ok(); };
  if (!mutex_.AwaitWithTimeout(Condition(&is_done), deadline)) {
    return absl::DeadlineExceededError("a rank of the engine does not carry out its commands");
  }
  return failed_;
}

absl::Status EngineRanks::Send(const rollouter::EngineCommand& command) {
  MutexLock lock(&mutex_);
  SYNCOPATE_RETURN_IF_ERROR(failed_);
  for (std::deque<rollouter::EngineCommand>& queue : commands_) queue.push_back(command);
  sent_ += static_cast<int64_t>(commands_.size());
  return absl::OkStatus();
}

void EngineRanks::Follow(size_t follower) {
  while (true) {
    rollouter::EngineCommand command;
    {
      MutexLock lock(&mutex_);
      std::deque<rollouter::EngineCommand>& queue = commands_[follower];
      auto is_due = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopped_ || !queue.empty(); };
      mutex_.Await(Condition(&is_due));
      if (stopped_) return;
      command = std::move(queue.front());
      queue.pop_front();
    }
    const absl::Status obeyed = followers_[follower].engine->Obey(command);
    {
      MutexLock lock(&mutex_);
      ++done_;
      if (failed_.ok()) failed_ = obeyed;
    }
    if (obeyed.ok()) continue;
    communicators_[follower + 1]->Abort(std::string(obeyed.message()));  // rank 0 would wait for this rank
    return;
  }
}

}  // namespace syncopate::twin
