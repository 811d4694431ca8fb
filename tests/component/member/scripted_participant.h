#pragma once

#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "synchronizer/member/sync_participant.h"
#include "tests/support/notification.h"

namespace syncopate::member {

// Follows the script of a test and records its commands: "prepare 1", "transfer 1", "install 1", "finish 1", "finish
// all".
class ScriptedParticipant final : public SyncParticipant {
 public:
  Mailbox<std::string>& calls() { return calls_; }
  // Makes the transfer of `attempt` wait for its Finish, like a transfer whose sender is stuck.
  void BlockTransfer(int64_t attempt) {
    MutexLock lock(&mutex_);
    blocked_.insert(attempt);
  }
  // The next commands answer with `report`.
  void Answer(synchronizer::SyncReport report) {
    MutexLock lock(&mutex_);
    answer_ = std::move(report);
  }

  synchronizer::SyncReport Prepare(const synchronizer::Prepare& command) override {
    return Called("prepare", command.attempt);
  }
  // A transfer ends when the test calls the function that the transfer leaves in `pushes`, like a source's transfer.
  void Push() {
    MutexLock lock(&mutex_);
    pushing_ = true;
  }
  Mailbox<Done>& pushes() { return pushes_; }

  void Transfer(const synchronizer::Transfer& command, Done done) override {
    const bool blocks = Blocks(command.attempt);
    const bool pushing = Pushing();
    synchronizer::SyncReport report = Called("transfer", command.attempt);
    if (pushing) return pushes_.Put(std::move(done));
    if (blocks) {
      AwaitFinish(command.attempt);
      report.status = Error(absl::StatusCode::kCancelled, "CANCELLED", "the attempt was ended");
    }
    done(std::move(report));
  }
  synchronizer::SyncReport Install(const synchronizer::Install& command) override {
    return Called("install", command.attempt);
  }
  void Finish(int64_t attempt) override {
    calls_.Put(absl::StrCat("finish ", attempt));
    MutexLock lock(&mutex_);
    blocked_.erase(attempt);
  }
  void FinishAll() override {
    calls_.Put("finish all");
    MutexLock lock(&mutex_);
    blocked_.clear();
  }

 private:
  synchronizer::SyncReport Called(const char* what, int64_t attempt) {
    calls_.Put(absl::StrCat(what, " ", attempt));
    MutexLock lock(&mutex_);
    return answer_;
  }

  bool Blocks(int64_t attempt) {
    MutexLock lock(&mutex_);
    return blocked_.count(attempt) > 0;
  }

  void AwaitFinish(int64_t attempt) {
    MutexLock lock(&mutex_);
    auto ended = [this, attempt]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return blocked_.count(attempt) == 0; };
    SYNCOPATE_CHECK(mutex_.AwaitWithTimeout(Condition(&ended), kTestDeadline));
  }

  bool Pushing() {
    MutexLock lock(&mutex_);
    return pushing_;
  }

  Mailbox<std::string> calls_;
  Mailbox<Done> pushes_;
  Mutex mutex_;
  bool pushing_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<int64_t> blocked_ ABSL_GUARDED_BY(mutex_);
  synchronizer::SyncReport answer_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncopate::member
