#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "rollouter/engine/engine.h"
#include "rollouter/engine/engine_loop.h"

namespace syncopate::rollouter {

// Implements EngineLoop with one thread that makes all steps. Callers put commands into a queue; the thread runs them
// between decode steps. Only that thread touches the engine's state; only the one receiver touches the shadow's bytes.
class EngineThread final : public EngineLoop {
 public:
  EngineThread(int threads, Manifest manifest, std::unique_ptr<Engine> engine)
      : manifest_(std::move(manifest)), threads_(threads), engine_(std::move(engine)) {
    status_.kv_bytes = engine_->kv_bytes();
    status_.host_kv_bytes = engine_->host_kv_bytes();
    status_.weight_bytes = engine_->weight_bytes();
    status_.buffer_bytes = engine_->buffer_bytes();
    thread_ = std::thread([this] { Run(); });
  }
  ~EngineThread() override { Stop(); }

  const Manifest& manifest() const override { return manifest_; }
  absl::Status Submit(GenerationRequest request, std::shared_ptr<GenerationSink> sink) override;
  absl::Status Extend(const std::string& id, int32_t sample, std::vector<int32_t> given) override;
  absl::Status Begin(const std::string& id, int32_t sample, std::vector<int32_t> given) override;
  void Rewind(const std::string& id, int32_t sample) override;
  void EndParked(const std::string& id, int32_t sample) override;
  int32_t Abort(const std::string& id) override;
  void Pause() override;
  void Resume() override;
  absl::Status Drain(absl::Duration deadline) override;
  absl::StatusOr<int64_t> Sleep(int32_t level, absl::Duration deadline) override;
  absl::Status WakeUp() override;
  absl::StatusOr<int64_t> Yield(absl::Duration deadline) override;
  absl::Status EndYield() override;

  char* shadow() override { return engine_->policy().shadow(); }
  const char* live() const override { return engine_->policy().live(); }
  absl::StatusOr<synchronizer::InstallResult> Install(const PolicyVersion& version, uint64_t digest,
                                                      absl::Duration deadline) override;
  absl::StatusOr<synchronizer::InstallResult> Relabel(const PolicyVersion& version, absl::Duration deadline) override;
  absl::Status BeginAttempt() override;
  void EndAttempt() override;
  absl::StatusOr<bool> TakeShadow(absl::Duration deadline) override;
  synchronizer::ReceiverWeights LastSleep() const override;
  void RestoreShadow() override {
    if (arenas().borrowed_bytes() == 0) shadow();  // shadow() moves it back to its address
  }
  absl::StatusOr<std::unique_ptr<synchronizer::ShadowCheck>> BeginCheck(
      synchronizer::ShadowContents contents) override {
    return arenas().BeginCheck(std::move(contents));
  }
  absl::Status CopyLive(const std::vector<ByteRange>& ranges) override { return arenas().CopyLive(ranges); }
  bool in_place() const override { return arenas().in_place(); }
  bool shares_base() const override { return engine_->policy().has_sets(); }
  bool maps_base() const override { return arenas().maps_base(); }
  absl::Status MapBase(synchronizer::LentMemory memory) override { return arenas().MapBase(std::move(memory)); }
  absl::Status OwnBase() override { return arenas().OwnBase(); }
  absl::Status BeginInPlace(const PolicyVersion& version, absl::Duration deadline) override;
  void CancelInPlace() override;
  void Invalidate() override;

  void SetInstallListener(std::function<void(const PolicyVersion&)> listener) override;
  void SetPinListener(std::function<void()> listener) override;
  EngineStatus GetStatus() const override;
  void Stop() override;

 private:
  // The kinds of change to the weights that a caller may request between two decode steps.
  enum class Change : uint8_t { kInstall, kRelabel, kBeginInPlace };
  // One caller's change. The caller abandons it at its deadline, unless the thread has begun it.
  struct PendingChange {
    Change change = Change::kInstall;
    PolicyVersion version;
    uint64_t digest = 0;
    absl::Time deadline;
    bool begun = false;
    bool done = false;
    absl::StatusOr<synchronizer::InstallResult> result = synchronizer::InstallResult();
  };

  bool HasRequestsLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return has_requests_ || added_ > 0 || !commands_.empty();
  }

  // Runs `command` on the engine's thread, later.
  void Post(std::function<void()> command);
  WeightArenas& arenas() const { return engine_->backend().arenas(); }
  // kBeginInPlace ignores `digest`.
  absl::StatusOr<synchronizer::InstallResult> ChangeWeights(Change change, const PolicyVersion& version,
                                                            uint64_t digest, absl::Duration deadline);
  absl::Status CheckChangeLocked(const PendingChange& change) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Requests with holds_install that wait for a transfer in place have no token yet, so they do not delay its end. With
  // adapter sets they delay only a transfer of the base.
  bool ChangeIsDueLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (change_ == nullptr || change_->begun) return false;
    return !holds_install_ || transferring_in_place_ || (shares_base() && change_->change != Change::kBeginInPlace);
  }
  bool MayStepLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !paused_ && !transferring_in_place_ && !status_.yielded;
  }
  // An engine that has yielded has no version that a request could pin: the request waits for the next install, too.
  bool HoldsInstallLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return engine_->InstallHeld() && !status_.yielded;
  }
  bool PinsVersionLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return shares_base() ? !engine_->policy().has_shadow() : HoldsInstallLocked();
  }

  void Run();
  // Runs until Stop(), or until an error after which no step is possible. May throw what libtorch throws.
  absl::Status Loop();
  // Blocks until there is work. False if the loop must end.
  bool AwaitWork();
  void End(const absl::Status& why);
  void RunCommands();
  // Runs a pending change. Returns an error only if there are no weights any more; the caller of the change gets every
  // error.
  absl::Status RunChange();
  absl::Status Apply(const PendingChange& change);
  // Records a change that was applied between `begin` and now.
  synchronizer::InstallResult FinishChangeLocked(const PendingChange& change, absl::Time begin)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status StepOnce();
  void PublishStatus();
  void PublishStatusLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PublishMemoryLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Runs `command` on the engine's thread and waits for it; false if the loop has stopped.
  bool RunOnThread(std::function<void()> command);
  // Like RunOnThread, for a command that can fail; CANCELLED (reason STOPPING) if the loop has stopped.
  absl::StatusOr<int64_t> RunFallible(std::function<absl::StatusOr<int64_t>()> command);
  // Blocks further attempts and waits for the current one to end. False at `deadline`. The caller must decrement
  // `waiting_sleeps_`.
  bool AwaitReceived(absl::Duration deadline);
  absl::Status CheckMaySleepLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckNotYieldedLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckNotReceivingLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Runs `command`, which refuses with UNAVAILABLE during a weight sync, when none is in progress.
  absl::StatusOr<int64_t> RunUnlessReceiving(const std::function<absl::StatusOr<int64_t>()>& command,
                                             absl::Duration deadline);
  void CallPinListener();
  // The steps of a lending, on the engine's thread: moves the memory once no step uses it any more, and gives it back.
  absl::Status ServeLending();
  absl::Status EndLending();
  void ReturnShadowLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Commands of Sleep(), WakeUp(), Yield() and EndYield(); they run on the engine's thread.
  absl::StatusOr<int64_t> FallAsleep(int32_t level);
  absl::StatusOr<int64_t> Wake();
  absl::StatusOr<int64_t> GiveUpDevice();
  // This part of EndYield() returns 1 if the engine had yielded, 0 if it sleeps for another reason or is awake.
  absl::StatusOr<int64_t> TakeDeviceBack();

  const Manifest manifest_;
  const int threads_;                     // intra-op threads of libtorch
  const std::unique_ptr<Engine> engine_;  // only the thread uses it
  absl::Status broken_;                   // why the engine is unusable; only the thread uses it
  std::function<void(const PolicyVersion&)> install_listener_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> pin_listener_ ABSL_GUARDED_BY(mutex_);

  mutable Mutex mutex_;
  std::vector<std::function<void()>> commands_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<PendingChange> change_ ABSL_GUARDED_BY(mutex_);
  // The live weights are being overwritten in place, or such a transfer has failed.
  bool transferring_in_place_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time stands_still_since_ ABSL_GUARDED_BY(mutex_);  // when transferring_in_place_ began
  int receiving_ ABSL_GUARDED_BY(mutex_) = 0;              // calls of BeginAttempt() without their EndAttempt()
  // The memory of a borrowed shadow: kNone --TakeShadow()--> kWanted --no step uses it--> kLent --installed, or no
  // attempt is left--> kReturning --> kNone. From kWanted also to kReturning, at its deadline.
  enum class Lending : uint8_t { kNone, kWanted, kLent, kReturning };
  Lending lending_ ABSL_GUARDED_BY(mutex_) = Lending::kNone;
  absl::Status lending_failure_ ABSL_GUARDED_BY(mutex_);  // why the memory could not be moved
  absl::Time lent_since_ ABSL_GUARDED_BY(mutex_);         // while kLent or kReturning
  int waiting_sleeps_ ABSL_GUARDED_BY(mutex_) = 0;        // sleeps that wait for receiving_ to become 0
  // Requests accepted by Submit() that the engine has not added yet.
  int64_t added_ ABSL_GUARDED_BY(mutex_) = 0;
  synchronizer::ReceiverWeights last_sleep_ ABSL_GUARDED_BY(mutex_);
  // From Yield() to EndYield(), whether or not it was asleep before.
  bool device_given_up_ ABSL_GUARDED_BY(mutex_) = false;
  bool paused_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  bool holds_install_ ABSL_GUARDED_BY(mutex_) = false;  // a request with holds_install runs or waits
  bool has_work_ ABSL_GUARDED_BY(mutex_) = false;       // a step can be made
  bool has_requests_ ABSL_GUARDED_BY(mutex_) = false;   // a request has not ended: parked samples count
  EngineStatus status_ ABSL_GUARDED_BY(mutex_);
  absl::Time idle_since_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();   // infinite: not idle
  absl::Time round_since_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();  // infinite: the thread waits
  std::thread thread_;
};

}  // namespace syncopate::rollouter
