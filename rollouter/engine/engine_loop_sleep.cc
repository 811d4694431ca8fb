// Sleep and wake: when the engine's memory may go, and what is refused meanwhile.

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/torch_error.h"
#include "rollouter/engine/engine_loop_core.h"
#include "synchronizer/superseded.h"

namespace syncopate::rollouter {

using synchronizer::ReceiverWeights;

absl::StatusOr<int64_t> EngineLoop::Core::Sleep(int32_t level, absl::Duration deadline) {
  if (level != 1 && level != 2) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_REQUEST",
                 absl::StrCat("sleep level is ", level, ", expected 1 (weights go to host memory) or 2 (dropped)"));
  }
  auto fall_asleep = [this, level] { return FallAsleep(level); };
  absl::StatusOr<int64_t> freed = RunFallible(fall_asleep);
  if (!absl::IsUnavailable(freed.status())) return freed;
  // A weight sync is under way. It ends by itself, and no other may begin before this sleep has.
  if (AwaitReceived(deadline)) freed = RunFallible(fall_asleep);
  MutexLock lock(&mutex_);
  --waiting_sleeps_;
  return freed;
}

bool EngineLoop::Core::AwaitReceived(absl::Duration deadline) {
  MutexLock lock(&mutex_);
  ++waiting_sleeps_;
  auto received = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || (!receiving_ && change_ == nullptr);
  };
  return mutex_.AwaitWithTimeout(Condition(&received), deadline);
}

absl::Status EngineLoop::Core::WakeUp() {
  return RunFallible([this] { return Wake(); }).status();
}

absl::Status EngineLoop::Core::CheckMaySleepLocked() const {
  // Requests that Submit() has taken are counted, also those whose turn to be added comes after this sleep's.
  if (engine_->HasWork() || added_ > 0) {
    return Error(absl::StatusCode::kFailedPrecondition, "BUSY",
                 "requests run or wait: drain this rollouter first, or abort them");
  }
  if (receiving_ || change_ != nullptr) {
    return Error(absl::StatusCode::kUnavailable, "BUSY", "a weight sync is under way; try again when it has ended");
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> EngineLoop::Core::FallAsleep(int32_t level) {
  int32_t before = 0;
  {
    MutexLock lock(&mutex_);
    before = status_.sleep_level;
    if (before >= level) return 0;
    SYNCOPATE_RETURN_IF_ERROR(CheckMaySleepLocked());
    status_.sleep_level = level;  // from here on nothing is taken: neither requests nor weights
  }
  absl::StatusOr<int64_t> freed = engine_->Sleep(/*keep_weights=*/level == 1);
  MutexLock lock(&mutex_);
  if (absl::IsResourceExhausted(freed.status())) {
    status_.sleep_level = before;
    return freed;
  }
  broken_.Update(freed.status());
  last_sleep_ = {.sleep_level = level, .free_cache_engine = true, .slept = true};
  if (level == 2) {
    status_.serving = PolicyVersion();
    status_.serving_digest = 0;
  }
  return freed;
}

absl::StatusOr<int64_t> EngineLoop::Core::Wake() {
  {
    MutexLock lock(&mutex_);
    if (status_.sleep_level == 0) return 0;
  }
  const absl::Status woken = engine_->WakeUp();
  if (!woken.ok() && !absl::IsResourceExhausted(woken)) broken_.Update(woken);
  SYNCOPATE_RETURN_IF_ERROR(woken);
  MutexLock lock(&mutex_);
  status_.sleep_level = 0;
  return 0;
}

absl::StatusOr<int64_t> EngineLoop::Core::RunFallible(std::function<absl::StatusOr<int64_t>()> command) {
  auto result = std::make_shared<absl::StatusOr<int64_t>>(
      Error(absl::StatusCode::kCancelled, "STOPPING", "this rollouter stops"));
  RunOnThread([command = std::move(command), result] { *result = command(); });
  return *result;
}

absl::Status EngineLoop::Core::BeginAttempt() {
  MutexLock lock(&mutex_);
  if (status_.sleep_level > 0 || waiting_sleeps_ > 0) {
    return Error(absl::StatusCode::kUnavailable, synchronizer::kHeld,
                 "this rollouter sleeps; it takes weights again when it is woken");
  }
  receiving_ = true;
  return absl::OkStatus();
}

void EngineLoop::Core::EndAttempt() {
  MutexLock lock(&mutex_);
  receiving_ = false;
}

ReceiverWeights EngineLoop::Core::LastSleep() const {
  MutexLock lock(&mutex_);
  return last_sleep_;
}

}  // namespace syncopate::rollouter
