#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/manifest.h"
#include "base/status.h"
#include "model/model_config.h"
#include "ranks/communicator.h"
#include "rollouter/engine/generation.h"
#include "rollouter/engine/request_figures.h"
#include "synchronizer/transport/weight_target.h"

namespace syncopate::rollouter {

class EngineBackend;

struct EngineStatus {
  enum class State { kWaitingForWeights, kRunning, kPaused, kDraining, kDrained, kFailed, kAsleep };
  State state = State::kWaitingForWeights;
  absl::Status failure;  // kFailed: why the engine has ended by itself
  // None before the first install, after a transfer in place that failed, and after a sleep that dropped the weights.
  PolicyVersion serving;
  uint64_t serving_digest = 0;
  int64_t running_sequences = 0;
  int64_t waiting_sequences = 0;
  double kv_usage = 0;        // 0 to 1
  int64_t kv_bytes = 0;       // held now
  int64_t weight_bytes = 0;   // all weight sets, where the engine computes
  int32_t sleep_level = 0;    // 0: awake
  bool pins_version = false;  // a request that holds installs runs or waits
  int64_t generated_tokens = 0;
  int64_t prefilled_tokens = 0;  // of prompts
  int64_t prompt_tokens = 0;     // that were to be computed or found as a prefix, again after a preemption
  int64_t prefix_tokens = 0;     // of them, found
  int64_t preemptions = 0;
  RequestFigures requests;
  int64_t installs = 0;
  double busy_seconds = 0;  // in decode steps
  double idle_seconds = 0;  // without work, paused or without weights
  // For how long the engine's thread has been at what it does now, be it a decode step or an install; 0 while it waits.
  double round_seconds = 0;
};

// The engine and its one thread; for weight syncs the target that receives and installs. All methods are thread-safe.
// This header needs no libtorch.
//
// An error of libtorch on the engine's thread (out of memory, a broken GPU) ends the engine: it is logged once, every
// request gets its OnFinished with kAborted, nothing is accepted any more, and GetStatus() says why.
class EngineLoop : public synchronizer::WeightTarget {
 public:
  struct Options {
    model::ModelConfig model;
    int64_t max_sequences = 256;
    int64_t max_prefill_tokens = 0;  // as Engine::Options
    int64_t kv_tokens = 0;           // room for keys and values; 0: for max_sequences of the longest
    bool deterministic = false;      // as RunnerOptions::deterministic
    int64_t bucket_bytes = Manifest::kDefaultBucketBytes;
    DType dtype = DType::kFloat32;  // of the weights, on the wire and here
    int threads = 1;                // intra-op threads of libtorch
    // Where it computes, made for this model, dtype and bucket size; null: on the CPU.
    std::shared_ptr<EngineBackend> backend = nullptr;
  };

  // Allocates KV cache and weights, unless the backend has those, and starts the thread. INVALID_ARGUMENT for options
  // that cannot be; RESOURCE_EXHAUSTED (reason OUT_OF_MEMORY) saying how much the cache needs.
  static absl::StatusOr<std::unique_ptr<EngineLoop>> Start(const Options& options);
  ~EngineLoop() override = default;  // Stop()
  EngineLoop(const EngineLoop&) = delete;
  EngineLoop& operator=(const EngineLoop&) = delete;

  virtual const Manifest& manifest() const = 0;

  // Queues a request; its results go to `sink`, on the engine's thread. Does not block. INVALID_ARGUMENT (BAD_REQUEST),
  // FAILED_PRECONDITION (NO_WEIGHTS, or ASLEEP), UNAVAILABLE (DRAINING) while draining or stopped. After OK every sample
  // gets its OnFinished, whatever happens.
  virtual absl::Status Submit(GenerationRequest request, std::shared_ptr<GenerationSink> sink) = 0;

  // Ends one request, or all if `id` is empty; returns how many sequences ended. Blocks for at most one decode step.
  virtual int32_t Abort(const std::string& id) = 0;

  // Pause() returns when no decode step runs; sequences stay and go on after Resume(). Both are idempotent.
  virtual void Pause() = 0;
  virtual void Resume() = 0;

  // Takes no new requests and waits until the running ones have ended. DEADLINE_EXCEEDED (reason DRAIN_DEADLINE) if
  // they have not; the loop keeps draining then. Resume() takes new requests again and ends the wait with ABORTED
  // (reason RESUMED).
  virtual absl::Status Drain(absl::Duration deadline) = 0;

  // Gives the memory of weights, keys and values back, and returns how many bytes that were. Level 1 keeps the weights in
  // host memory; level 2 drops them, so nothing serves after WakeUp() before an Install(). Pausing and draining are apart
  // from it. Once more is nothing more (0 bytes), except level 2 after level 1, which drops what was kept. Requests that
  // run or wait: FAILED_PRECONDITION (reason BUSY). A weight sync under way is waited for, at most for `deadline`
  // (UNAVAILABLE, reason BUSY), and none begins meanwhile. RESOURCE_EXHAUSTED if the host has no room for the weights. A
  // refused sleep changes nothing. Otherwise blocks for as long as giving the memory back takes.
  virtual absl::StatusOr<int64_t> Sleep(int32_t level, absl::Duration deadline) = 0;
  // Takes the memory again; OK if nothing sleeps. RESOURCE_EXHAUSTED if others have taken it: then it sleeps on, and may
  // be woken again.
  virtual absl::Status WakeUp() = 0;

  // The bytes of the weight set that does not serve (manifest().arena_bytes(), 64-byte aligned, where the backend
  // computes). They belong to the one receiver between two installs; no decode step reads them.
  char* shadow() override = 0;
  // The bytes that serve. Stable while no install runs.
  virtual const char* live() const = 0;

  // Makes the shadow's contents serve as `version` (greater than the one that serves: FAILED_PRECONDITION, reason
  // OLD_VERSION), between two decode steps: every token after it is stamped with `version`, every token before it with
  // the older one. Running sequences keep their KV cache. Blocks until done or `deadline` has passed
  // (DEADLINE_EXCEEDED, reason INSTALL_DEADLINE: nothing changed and nothing will). Waits for requests that hold
  // installs. UNAVAILABLE (reason INSTALL_BUSY) beside another install, or (HELD) asleep.
  absl::StatusOr<synchronizer::InstallResult> Install(const PolicyVersion& version, uint64_t digest,
                                                      absl::Duration deadline) override = 0;
  // The same when the bytes that serve are `version` too: only the stamp changes, nothing is exchanged.
  absl::StatusOr<synchronizer::InstallResult> Relabel(const PolicyVersion& version,
                                                      absl::Duration deadline) override = 0;

  // An engine that sleeps, or is about to, holds installs back, and one whose status says pins_version.
  absl::Status BeginAttempt() override = 0;
  bool can_copy_live() const override { return true; }
  // With one weight set: no decode step runs from BeginInPlace() on until Install() or CancelInPlace(), or after
  // Invalidate() until a later Install(). Waits as Install() does, also for requests that hold installs.
  absl::Status BeginInPlace(absl::Duration deadline) override = 0;

  // Called on the engine's thread after each install or relabelling and before Install() or Relabel() returns, without
  // locks held; must not block. Set before the first install.
  virtual void SetInstallListener(std::function<void(const PolicyVersion&)> listener) = 0;

  // Called on the engine's thread when `pins_version` of the status has changed, without locks held; must not block.
  virtual void SetPinListener(std::function<void()> listener) = 0;

  virtual EngineStatus GetStatus() const = 0;

  // Aborts what runs and ends the thread. Idempotent.
  virtual void Stop() = 0;

 protected:
  EngineLoop() = default;
};

// The CPU with one weight set, for whoever loads weights once: an install is in place. `manifest` is the manifest of
// `config`. RESOURCE_EXHAUSTED (reason OUT_OF_MEMORY) saying how much is needed.
absl::StatusOr<std::shared_ptr<EngineBackend>> MakeInPlaceHostBackend(const model::ModelConfig& config,
                                                                      const Manifest& manifest);

// The CPU for one rank of a replica: config and manifest of its slice (rank_slice.h), two weight sets; `ranks` is borrowed.
// RESOURCE_EXHAUSTED as above.
absl::StatusOr<std::shared_ptr<EngineBackend>> MakeHostRankBackend(const model::ModelConfig& config,
                                                                   const Manifest& manifest, Communicator* ranks);

}  // namespace syncopate::rollouter
