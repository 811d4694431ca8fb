#pragma once

#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "model/torch_error.h"
#include "ranks/collective.h"
#include "ranks/communicator.h"
#include "rollouter/engine/engine_backend.h"
#include "rollouter/engine/engine_commands.h"

// The ranks of a replica as threads of one process.
namespace syncopate::testing {

// Runs every rank but rank 0 on a thread of its own, which carries out the commands sent to it until Stop().
class FollowerThreads final : public rollouter::EngineFollowers {
 public:
  // Makes the backend of a rank; called on the rank's thread.
  using MakeBackend = std::function<absl::StatusOr<std::shared_ptr<rollouter::EngineBackend>>(int32_t rank)>;

  // Called with the error of a rank that fails, on that rank's thread.
  FollowerThreads(int32_t world, MakeBackend make_backend, std::function<void(const absl::Status&)> on_error)
      : queues_(static_cast<size_t>(world - 1)),
        make_backend_(std::move(make_backend)),
        on_error_(std::move(on_error)) {
    for (int32_t rank = 1; rank < world; ++rank) threads_.emplace_back([this, rank] { Run(rank); });
  }
  ~FollowerThreads() override { Stop(); }

  absl::Status Send(const rollouter::EngineCommand& command) override {
    MutexLock lock(&mutex_);
    SYNCOPATE_RETURN_IF_ERROR(failed_);
    for (std::deque<rollouter::EngineCommand>& queue : queues_) {
      queue.push_back(command);
      ++sent_;
    }
    return absl::OkStatus();
  }
  absl::Status AwaitObeyed(absl::Duration deadline) override {
    MutexLock lock(&mutex_);
    auto is_done = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return done_ == sent_ || !failed_.ok(); };
    if (!mutex_.AwaitWithTimeout(Condition(&is_done), deadline)) return RankLost("a rank does not obey");
    SYNCOPATE_RETURN_IF_ERROR(failed_);
    for (const absl::Status& room : rooms_) SYNCOPATE_RETURN_IF_ERROR(room);
    return absl::OkStatus();
  }
  // Waits until all commands that were sent are done.
  void AwaitDone() {
    MutexLock lock(&mutex_);
    auto is_done = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return done_ == sent_ || !failed_.ok(); };
    mutex_.Await(Condition(&is_done));
  }
  // Waits likewise, then ends the threads.
  void Stop() {
    {
      MutexLock lock(&mutex_);
      stopped_ = true;
    }
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  // The exchanges that each rank has made, as (number of plans before it, version). Call it after Stop().
  using Installs = std::vector<std::pair<int64_t, PolicyVersion>>;
  const std::vector<Installs>& installs() const { return installs_; }

 private:
  void Run(int32_t rank) {
    absl::Status why;
    try {
      why = Follow(rank);
    } catch (const std::exception& error) {
      why = model::TorchError(error, "a rank of the replica");
    }
    if (why.ok()) return;
    {
      MutexLock lock(&mutex_);
      if (failed_.ok()) failed_ = why;
    }
    on_error_(why);
  }

  absl::Status Follow(int32_t rank) {
    SYNCOPATE_ASSIGN_OR_RETURN(std::shared_ptr<rollouter::EngineBackend> backend, make_backend_(rank));
    rollouter::FollowingEngine engine(std::move(backend));
    rollouter::EngineCommand command;
    while (Take(rank, command)) {
      SYNCOPATE_RETURN_IF_ERROR(engine.Obey(command));
      MutexLock lock(&mutex_);
      ++done_;
      rooms_[static_cast<size_t>(rank) - 1] = engine.room();
      if (command.kind != rollouter::EngineCommand::Kind::kExchange) continue;
      installs_[static_cast<size_t>(rank) - 1].push_back({engine.plans(), engine.serving()});
    }
    return absl::OkStatus();
  }

  bool Take(int32_t rank, rollouter::EngineCommand& command) {
    MutexLock lock(&mutex_);
    std::deque<rollouter::EngineCommand>& queue = queues_[static_cast<size_t>(rank) - 1];
    auto is_due = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopped_ || !queue.empty(); };
    mutex_.Await(Condition(&is_due));
    if (queue.empty()) return false;
    command = std::move(queue.front());
    queue.pop_front();
    return true;
  }

  Mutex mutex_;
  std::vector<std::deque<rollouter::EngineCommand>> queues_ ABSL_GUARDED_BY(mutex_);
  int64_t sent_ ABSL_GUARDED_BY(mutex_) = 0, done_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failed_ ABSL_GUARDED_BY(mutex_);
  std::vector<absl::Status> rooms_ ABSL_GUARDED_BY(mutex_) = std::vector<absl::Status>(queues_.size());
  std::vector<Installs> installs_ = std::vector<Installs>(queues_.size());
  const MakeBackend make_backend_;
  const std::function<void(const absl::Status&)> on_error_;
  std::vector<std::thread> threads_;
};

}  // namespace syncopate::testing
