#include "tools/twin/trainer_ranks.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "ranks/thread_ranks.h"

namespace syncopate::twin {
namespace {

constexpr absl::Duration kRankDeadline = absl::Minutes(5);

}  // namespace

absl::StatusOr<std::unique_ptr<TrainerRanks>> TrainerRanks::Create(const trainer::PolicyTrainer::Options& options,
                                                                   int32_t world, const Manifest& wire, int slots,
                                                                   const std::string& destination) {
  std::unique_ptr<TrainerRanks> made(new TrainerRanks());
  std::vector<std::unique_ptr<Communicator>> communicators;
  if (world > 1) communicators = MakeThreadRanks(world, kRankDeadline);
  for (int32_t rank = 0; rank < world; ++rank) {
    Rank one;
    trainer::PolicyTrainer::Options own = options;
    if (world > 1) {
      one.communicator = std::move(communicators[static_cast<size_t>(rank)]);
      own.mesh = *one.communicator;
    }
    SYNCOPATE_ASSIGN_OR_RETURN(one.policy, trainer::PolicyTrainer::Create(own));
    SYNCOPATE_ASSIGN_OR_RETURN(one.stager,
                               trainer::HostStager::Create(one.policy.get(), wire, slots,
                                                           {.rank = rank, .world = world, .destination = destination}));
    if (rank > 0) {
      one.stagings = std::make_unique<trainer::FollowerStager>(
          one.stager.get(), [ranks = made.get(), rank](const PolicyVersion& version, const auto& staged) {
            MutexLock lock(&ranks->mutex_);
            ranks->staged_.Add(version.ToString(), rank, staged);
          });
    }
    made->ranks_.push_back(std::move(one));
  }
  Rank& first = made->ranks_.front();
  made->policy_ = first.policy.get();
  if (world > 1) {
    made->leading_ = std::make_unique<trainer::LeadingPolicy>(first.policy.get());
    made->leading_->Lead(made.get());
    made->policy_ = made->leading_.get();
    auto group = std::make_unique<trainer::GroupStager>(std::move(first.stager));
    group->Lead(made.get(), made.get());
    first.stager = std::move(group);
  }
  made->stager_ = first.stager.get();
  {
    MutexLock lock(&made->mutex_);
    made->orders_.resize(static_cast<size_t>(world));
  }
  for (int32_t rank = 1; rank < world; ++rank) {
    made->threads_.emplace_back([ranks = made.get(), rank] { ranks->Follow(rank); });
  }
  return made;
}

TrainerRanks::~TrainerRanks() {
  {
    MutexLock lock(&mutex_);
    stopped_ = true;
  }
  for (Rank& rank : ranks_) {
    if (rank.communicator != nullptr) rank.communicator->Abort("the twin ends");
  }
  for (std::thread& thread : threads_) thread.join();
  for (Rank& rank : ranks_) rank.stagings = nullptr;  // their threads report here
}

absl::Status TrainerRanks::Send(const trainer::PolicyCommand& command,
                                const std::vector<const TrajectoryGroup*>& groups) {
  Order order{.command = command, .groups = {}};
  for (const TrajectoryGroup* group : groups) order.groups.push_back(*group);
  MutexLock lock(&mutex_);
  SYNCOPATE_RETURN_IF_ERROR(failed_);
  for (size_t rank = 1; rank < orders_.size(); ++rank) orders_[rank].push_back(order);
  return absl::OkStatus();
}

absl::StatusOr<TrainerRanks::OfRanks> TrainerRanks::AwaitStaged(const PolicyVersion& version) {
  const std::string subject = version.ToString();
  MutexLock lock(&mutex_);
  auto is_due = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !failed_.ok() || staged_.AllIn(subject, world() - 1);
  };
  if (!mutex_.AwaitWithTimeout(Condition(&is_due), kRankDeadline)) {
    return absl::DeadlineExceededError(absl::StrCat("version ", subject, " is not staged on all ranks"));
  }
  SYNCOPATE_RETURN_IF_ERROR(failed_);
  return staged_.Take(subject);
}

std::optional<TrainerRanks::Order> TrainerRanks::Take(int32_t rank) {
  MutexLock lock(&mutex_);
  std::deque<Order>& orders = orders_[static_cast<size_t>(rank)];
  auto is_due = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopped_ || !orders.empty(); };
  mutex_.Await(Condition(&is_due));
  if (stopped_) return std::nullopt;
  Order order = std::move(orders.front());
  orders.pop_front();
  return order;
}

absl::Status TrainerRanks::Obey(Rank& rank, const Order& order) {
  if (order.command.kind == trainer::PolicyCommand::Kind::kStage) {
    rank.stagings->Stage(order.command.version);
    return absl::OkStatus();
  }
  std::vector<const TrajectoryGroup*> groups;
  for (const TrajectoryGroup& group : order.groups) groups.push_back(&group);
  return trainer::ObeyCommand(*rank.policy, order.command, groups);
}

void TrainerRanks::Follow(int32_t rank) {
  while (const std::optional<Order> order = Take(rank)) {
    const absl::Status obeyed = Obey(ranks_[static_cast<size_t>(rank)], *order);
    if (obeyed.ok()) continue;
    {
      MutexLock lock(&mutex_);
      if (failed_.ok()) failed_ = obeyed;
    }
    // Without it rank 0 would wait for this rank in a collective.
    ranks_[static_cast<size_t>(rank)].communicator->Abort(std::string(obeyed.message()));
    return;
  }
}

}  // namespace syncopate::twin
