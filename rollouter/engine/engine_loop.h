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

// A snapshot of an engine's state and counters.
struct EngineStatus {
  enum class State { kWaitingForWeights, kRunning, kPaused, kDraining, kDrained, kFailed, kAsleep };
  State state = State::kWaitingForWeights;
  absl::Status failure;  // kFailed: why the engine ended by itself
  // No version before the first install, after a failed transfer in place, and after a sleep that dropped the weights.
  PolicyVersion serving;
  uint64_t serving_digest = 0;
  int64_t running_sequences = 0;
  int64_t waiting_sequences = 0;
  int64_t parked_sequences = 0;  // samples between two turns
  double kv_usage = 0;           // the share of blocks in use, 0 to 1
  int64_t kv_bytes = 0;          // memory of keys and values allocated now on the engine's device
  double host_kv_usage = 0;      // the share of blocks for swapping in use, 0 to 1
  int64_t host_kv_bytes = 0;     // host memory for swapped keys and values allocated now
  int64_t weight_bytes = 0;      // all weight sets, on the engine's device
  int64_t buffer_bytes = 0;      // what steps need beside both, on the engine's device; 0 on the CPU
  int64_t lent_bytes = 0;        // of kv_bytes' memory, what is lent to a borrowed shadow now
  int32_t sleep_level = 0;       // 0: awake
  bool pins_version = false;     // no version is taken now: a request with holds_install runs or waits; with adapter
                                 // sets: none is free
  PolicyVersion pinned;          // that of a pinned adapter set, which answers evaluations; none: there is none
  bool draining = false;         // it takes no new work, also while it sleeps
  bool yielded = false;          // from Yield() to the next install: sequences are kept, requests are accepted
  int64_t generated_tokens = 0;
  int64_t prefilled_tokens = 0;  // tokens of prompts that were computed
  int64_t prompt_tokens = 0;     // tokens to compute or find as a prefix, counted again after a preemption
  int64_t prefix_tokens = 0;     // the part of prompt_tokens that was found as a prefix
  int64_t preemptions = 0;
  int64_t swaps = 0;              // the preemptions that swapped to the host; the others are computed again
  int64_t yielded_sequences = 0;  // sequences that Yield() took off the device
  int64_t yielded_swaps = 0;      // of them, swapped to the host; the others are computed again
  int64_t lendings = 0;           // times that memory of keys and values was lent to the shadow
  double lent_seconds = 0;        // for which it was lent, the present lending included
  int64_t moved_blocks = 0;       // blocks that were copied out of the lent part
  RequestFigures requests;
  int64_t installs = 0;
  double busy_seconds = 0;  // time in decode steps
  double idle_seconds = 0;  // time without work, paused or without weights
  // The time since the engine's thread began its current operation (a decode step, an install); 0 while it waits.
  double round_seconds = 0;
};

// The engine and its one thread; it is also the target that receives and installs weight syncs. All methods are
// thread-safe. This header needs no libtorch.
//
// An error of libtorch on the engine's thread (out of memory, a broken GPU) ends the engine: it is logged once, every
// request gets its OnFinished with kAborted, no new request is accepted, and GetStatus() gives the reason.
class EngineLoop : public synchronizer::WeightTarget {
 public:
  struct Options {
    model::ModelConfig model;
    int64_t max_sequences = 256;
    int64_t max_prefill_tokens = 0;  // see Engine::Options
    int64_t kv_tokens = 0;           // tokens of keys and values to allocate memory for; 0: the runner's default
    // Host memory of each rank for keys and values of preempted sequences, which are then swapped as far as it reaches;
    // the others, and all with 0, are computed again. At least one block, if not 0.
    int64_t host_kv_bytes = 0;
    bool deterministic = false;  // see RunnerOptions::deterministic
    int64_t bucket_bytes = Manifest::kDefaultBucketBytes;
    DType dtype = DType::kFloat32;  // the data type of the weights, on the wire and here
    int threads = 1;                // intra-op threads of libtorch
    // The backend, made for this model, dtype and bucket size; null: a new HostBackend.
    std::shared_ptr<EngineBackend> backend = nullptr;
  };

  // Allocates KV cache and weights, unless the backend already has weights, and starts the thread. INVALID_ARGUMENT for
  // bad options; RESOURCE_EXHAUSTED (reason OUT_OF_MEMORY) saying how much memory the cache needs.
  static absl::StatusOr<std::unique_ptr<EngineLoop>> Start(const Options& options);
  ~EngineLoop() override = default;  // each implementation calls Stop()
  EngineLoop(const EngineLoop&) = delete;
  EngineLoop& operator=(const EngineLoop&) = delete;

  virtual const Manifest& manifest() const = 0;

  // Queues a request; its results go to `sink` on the engine's thread. Does not block. INVALID_ARGUMENT (BAD_REQUEST,
  // or see Engine::CheckShape),
  // FAILED_PRECONDITION (NO_WEIGHTS or ASLEEP), UNAVAILABLE (DRAINING) while draining or stopped. After OK every sample
  // gets its OnFinished in every case.
  virtual absl::Status Submit(GenerationRequest request, std::shared_ptr<GenerationSink> sink) = 0;

  // Begins the next turn of a parked sample (GenerationSink::OnTurnEnded) behind `given`. Without room for these tokens
  // and one more the sample ends with kLength; no effect if it has ended, for example by Abort(). Only queues: a sink
  // may call it, also while it parks the sample. INVALID_ARGUMENT (BAD_REQUEST) for no tokens or one outside the
  // vocabulary.
  virtual absl::Status Extend(const std::string& id, int32_t sample, std::vector<int32_t> given) = 0;
  // Begins the first turn of a sample that started parked, or was rewound. `given` may be empty. Otherwise as Extend().
  virtual absl::Status Begin(const std::string& id, int32_t sample, std::vector<int32_t> given) = 0;
  // A parked sample loses all its tokens, and waits for Begin(). Otherwise as Extend().
  virtual void Rewind(const std::string& id, int32_t sample) = 0;
  // Ends a parked sample: its OnFinished has the finish of its last turn, or kAborted if it has no tokens. Otherwise as
  // Extend().
  virtual void EndParked(const std::string& id, int32_t sample) = 0;

  // Ends the request `id`, or all if `id` is empty; returns the number of sequences that ended. Blocks for at most one
  // decode step.
  virtual int32_t Abort(const std::string& id) = 0;

  // Pause() returns when no decode step runs; sequences stay and continue after Resume(). Both are idempotent.
  virtual void Pause() = 0;
  virtual void Resume() = 0;

  // Refuses new requests and waits until the running ones have ended. DEADLINE_EXCEEDED (reason DRAIN_DEADLINE) if they
  // have not ended in time; the loop then continues to drain. Resume() accepts new requests again and ends the wait
  // with ABORTED (reason RESUMED).
  virtual absl::Status Drain(absl::Duration deadline) = 0;

  // Releases the memory of weights, keys and values, and returns the number of bytes released. Level 1 keeps the
  // weights in host memory; level 2 drops them, so after WakeUp() no version serves before an Install(). Sleep is
  // independent of pause and drain. A repeated call releases nothing (0 bytes), except level 2 after level 1, which
  // drops the kept weights. FAILED_PRECONDITION (reason BUSY) if requests run or wait. If a weight sync is in progress,
  // waits for its end, at most for `deadline` (UNAVAILABLE, reason BUSY), and no other may begin meanwhile.
  // RESOURCE_EXHAUSTED if host memory does not suffice for the weights. A refused sleep changes nothing. Otherwise
  // blocks until the memory is released.
  virtual absl::StatusOr<int64_t> Sleep(int32_t level, absl::Duration deadline) = 0;
  // Allocates the memory again; OK if the engine is awake. RESOURCE_EXHAUSTED if other processes have taken it: the
  // engine stays asleep, and WakeUp() may be called again.
  virtual absl::Status WakeUp() = 0;

  // Gives the device up to another process that takes turns with this one: as Sleep() at level 2, but requests stay and
  // are accepted; they wait for the install that follows EndYield(). See Engine::Yield(). Returns the bytes that went to
  // host memory; 0 if the engine has yielded already. An engine that sleeps drops what it has kept, and sleeps on.
  // UNAVAILABLE (reason BUSY) if a weight sync does not end within `deadline`; CANCELLED (reason STOPPING).
  virtual absl::StatusOr<int64_t> Yield(absl::Duration deadline) = 0;
  // Allocates the memory again; from here on weights are accepted. OK if the engine has not yielded. Errors as WakeUp().
  // WakeUp() and Sleep() are refused between the two calls: FAILED_PRECONDITION (reason YIELDED).
  virtual absl::Status EndYield() = 0;

  // The bytes of the weight set that does not serve (manifest().arena_bytes(), 64-byte aligned, on the backend's
  // device). They belong to the one receiver between two installs; no decode step reads them.
  char* shadow() override = 0;
  // The bytes that serve. They do not change while no install runs.
  virtual const char* live() const = 0;

  // Makes the shadow's contents serve as `version`, between two decode steps: every later token is stamped with
  // `version`, every earlier token with the older one. Running sequences keep their KV cache. FAILED_PRECONDITION
  // (reason OLD_VERSION) unless `version` is greater than the serving one. Waits for requests with holds_install.
  // Blocks until done or until `deadline` has passed (DEADLINE_EXCEEDED, reason INSTALL_DEADLINE: nothing has changed
  // and nothing will). UNAVAILABLE (reason INSTALL_BUSY) during another install, or (reason HELD) while asleep.
  absl::StatusOr<synchronizer::InstallResult> Install(const PolicyVersion& version, uint64_t digest,
                                                      absl::Duration deadline) override = 0;
  // Gives the serving bytes the newer `version`: only the stamp changes, no bytes are exchanged. Rules and errors as
  // Install(); FAILED_PRECONDITION (reason NO_WEIGHTS) if no version serves.
  absl::StatusOr<synchronizer::InstallResult> Relabel(const PolicyVersion& version,
                                                      absl::Duration deadline) override = 0;

  // UNAVAILABLE (reason HELD) while the engine sleeps or is about to, and while its status says pins_version.
  absl::Status BeginAttempt() override = 0;
  bool can_copy_live() const override { return true; }
  // For one weight set: no decode step runs from BeginInPlace() until Install() or CancelInPlace(), or after
  // Invalidate() until a later Install(). Waits as Install() does, also for requests with holds_install.
  absl::Status BeginInPlace(const PolicyVersion& version, absl::Duration deadline) override = 0;

  // `listener` is called on the engine's thread after each install or relabelling and before Install() or Relabel()
  // returns, without locks held; it must not block. Set it before the first install.
  virtual void SetInstallListener(std::function<void(const PolicyVersion&)> listener) = 0;

  // `listener` is called when weights are refused or accepted for another reason than before, without locks held: on the
  // engine's thread when `pins_version` of the status has changed, and by Yield() and EndYield(). It must not block.
  virtual void SetPinListener(std::function<void()> listener) = 0;

  virtual EngineStatus GetStatus() const = 0;

  // Aborts running requests and ends the thread. Idempotent.
  virtual void Stop() = 0;

 protected:
  EngineLoop() = default;
};

// Creates a CPU backend with one weight set, for programs that load weights once: an install is in place. `manifest` is
// the manifest of `config`. RESOURCE_EXHAUSTED (reason OUT_OF_MEMORY) saying how much memory is needed.
absl::StatusOr<std::shared_ptr<EngineBackend>> MakeInPlaceHostBackend(const model::ModelConfig& config,
                                                                      const Manifest& manifest);

// Creates a CPU backend whose second weight set is lent by the keys and values while a weight sync needs it. Otherwise
// as MakeInPlaceHostBackend.
absl::StatusOr<std::shared_ptr<EngineBackend>> MakeBorrowingHostBackend(const model::ModelConfig& config,
                                                                        const Manifest& manifest);

// Creates a CPU backend of adapter sets whose base may be memory that the trainer lends. Otherwise as
// MakeInPlaceHostBackend.
absl::StatusOr<std::shared_ptr<EngineBackend>> MakeMappingHostBackend(const model::ModelConfig& config,
                                                                      const Manifest& manifest);

// Creates a CPU backend for one rank of a replica: `config` and `manifest` are those of its slice (rank_slice.h);
// `weight_sets` is 2, or 1 for installs in place; `ranks` is borrowed. RESOURCE_EXHAUSTED as MakeInPlaceHostBackend.
absl::StatusOr<std::shared_ptr<EngineBackend>> MakeHostRankBackend(const model::ModelConfig& config,
                                                                   const Manifest& manifest, int weight_sets,
                                                                   Communicator* ranks);

}  // namespace syncopate::rollouter
