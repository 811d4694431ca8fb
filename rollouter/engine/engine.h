#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "model/model_config.h"
#include "rollouter/engine/engine_backend.h"
#include "rollouter/engine/generation.h"
#include "rollouter/engine/model_runner.h"
#include "rollouter/engine/request_figures.h"
#include "rollouter/engine/scheduler.h"
#include "rollouter/engine/serving_policy.h"

namespace syncopate::rollouter {

// Continuous batching on one thread: the scheduler plans steps, the backend's runner executes them, and each drawn
// token goes to the sink of its request. Sequences join and leave at any step. Not thread-safe: `EngineThread` owns it.
// Create(), BindThread(), Step(), AwaitLaunched() and Synchronize() may throw c10::Error. After such an exception or an
// error that they returned, only Abort() may be called.
class Engine {
 public:
  struct Options {
    int64_t max_sequences = 256;     // the largest number that run at once
    int64_t max_prefill_tokens = 0;  // per step; longer prompts are prefilled in chunks; 0: the backend's default
    int64_t max_context = 0;         // tokens of one sequence; 0: the model's limit
    int64_t kv_blocks = 0;           // blocks for keys and values; 0: the runner's default
    int64_t host_kv_blocks = 0;      // blocks in host memory for swapping
    // The most blocks without a user that stay cached for their prefix; -1: the runner's default.
    int64_t max_kept_blocks = -1;
    int32_t plans_under_way = 0;  // the most plans in progress; 0: the runner's default
    Scheduler::Preemption preemption = Scheduler::Preemption::kRecompute;
    bool follow_usage = true;    // see Scheduler::Options::follow_usage
    bool deterministic = false;  // see RunnerOptions::deterministic
    absl::Status Validate() const;
  };

  // `config` must be valid, and `backend` made for it. RESOURCE_EXHAUSTED if memory does not suffice.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const model::ModelConfig& config,
                                                        std::shared_ptr<EngineBackend> backend, const Options& options);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // INVALID_ARGUMENT if the request can never run (reason BAD_REQUEST), or is for the base of a model without adapters
  // (NO_ADAPTERS) or by a runner that does not serve it (BASE_NOT_SERVED). Reads only immutable state, so any thread
  // may call it.
  absl::Status CheckShape(const GenerationRequest& request) const;

  // Queues a request that passed CheckShape(); a request with holds_install goes to the front.
  void Add(GenerationRequest request, std::shared_ptr<GenerationSink> sink);

  // Ends the request `id`, or every request if `id` is empty. Its samples get OnFinished with kAborted. Returns the
  // number of sequences that ended.
  int32_t Abort(const std::string& id);

  // Begins the next turn of a parked sample behind `given`, which passed CheckGiven(); without room for these tokens
  // and one more the sample ends with kLength. No effect if the request or the sample has ended.
  void Extend(const std::string& id, int32_t sample, const std::vector<int32_t>& given);
  // A parked sample loses all its tokens, and waits for Extend() again, which may then give none. No effect if the
  // request or the sample has ended.
  void Rewind(const std::string& id, int32_t sample);
  // Ends a parked sample as its last turn ended; one without tokens is aborted. No effect if the request or the sample
  // has ended.
  void EndParked(const std::string& id, int32_t sample);
  // INVALID_ARGUMENT (reason BAD_REQUEST) for a token outside the vocabulary, or for none if `needed`. Any thread may
  // call it.
  absl::Status CheckGiven(const std::vector<int32_t>& given, bool needed) const;

  // True while a step can be made, or is in progress.
  bool HasWork() const { return scheduler_.HasWork() || !launched_.empty(); }
  // True while a request has not ended, or a step is in progress.
  bool HasRequests() const { return scheduler_.HasRequests() || !launched_.empty(); }
  // True while a request with holds_install runs or waits. Without adapter sets an install must wait for its end; with
  // them the request is answered by a set that stays, and only a transfer of the base waits.
  bool InstallHeld() const { return holding_ > 0; }

  // The thread that calls BindThread() makes all steps until UnbindThread(), on a stream of its own. Steps outside such
  // a pair run on the thread's current stream.
  void BindThread() { runner_->BindThread(); }
  void UnbindThread() { runner_->UnbindThread(); }

  // Launches a step. If the most plans are in progress, or no step can be launched, also waits for the oldest launched
  // step and delivers its tokens. Precondition: HasWork() and there are weights.
  absl::Status Step();
  // Waits for all launched steps and delivers their tokens.
  absl::Status AwaitLaunched();
  // Does what AwaitLaunched() does, then blocks until no work reads the weights. Call it before the weights change.
  absl::Status Synchronize();
  // When the latest step that was awaited had ended; the infinite past before the first one.
  absl::Time decoded_until() const { return decoded_until_; }

  // Releases the memory of weights, keys and values, and returns the number of bytes released. With `keep_weights` the
  // live weights stay in host memory; otherwise no version serves afterwards. No step may run before WakeUp(). A second
  // call releases only what is left. Precondition: !HasRequests(), and no weight sync is in progress.
  // RESOURCE_EXHAUSTED: nothing has changed; after another error the engine is unusable. WakeUp() follows both rules
  // too.
  absl::StatusOr<int64_t> Sleep(bool keep_weights);
  absl::Status WakeUp();
  // Sleep without the weights, with requests: sequences wait, swapped to host memory as far as that reaches, the others
  // to be computed again. Requests with holds_install end with kAborted, as no other version may answer them. Returns
  // the bytes that were moved to the host. Precondition: no weight sync is in progress. After an error the engine is
  // unusable.
  absl::StatusOr<int64_t> Yield();

  // For a borrowed shadow (WeightArenas::borrowed_bytes). Lend() asks for the memory of the last blocks: the next step
  // ends their use. CloseLent() ends it without a step, for an engine that makes none; it waits for launched steps.
  void Lend() { scheduler_.Lend(); }
  absl::Status CloseLent();
  // Whether no launched or later step uses the lent blocks, so that TakeShadow() may be called.
  bool has_lent() const { return scheduler_.has_lent(); }
  // Moves the lent blocks' memory to the shadow. After an error the blocks have their memory again.
  absl::Status TakeShadow();
  // Ends the lending, at any moment after Lend(): the memory that does not serve goes to the blocks. Does nothing if
  // nothing is lent. After an error the engine is unusable.
  absl::Status ReturnShadow();

  ServingPolicy& policy() { return policy_; }
  const ServingPolicy& policy() const { return policy_; }

  int64_t running_sequences() const { return scheduler_.running_sequences(); }
  int64_t waiting_sequences() const { return scheduler_.waiting_sequences(); }
  int64_t parked_sequences() const { return scheduler_.parked_sequences(); }
  double kv_usage() const { return scheduler_.block_usage(); }
  int64_t kv_bytes() const { return runner_->kv_bytes(); }
  // Tokens that keys and values have room for, and of them those whose memory may be lent.
  int64_t kv_tokens() const { return runner_->capacity().blocks * kBlockTokens; }
  int64_t lent_tokens() const { return runner_->capacity().lent_blocks * kBlockTokens; }
  int64_t host_kv_bytes() const { return runner_->host_kv_bytes(); }
  double host_kv_usage() const { return scheduler_.host_block_usage(); }
  int64_t buffer_bytes() const { return runner_->buffer_bytes(); }
  int64_t weight_bytes() const { return backend_->arenas().bytes(); }
  EngineBackend& backend() { return *backend_; }
  int64_t generated_tokens() const { return generated_tokens_; }
  // Tokens of prompts that were computed.
  int64_t prefilled_tokens() const { return scheduler_.counters().prefilled_tokens; }
  const Scheduler::Counters& counters() const { return scheduler_.counters(); }
  const RequestFigures& request_figures() const { return figures_; }

 private:
  struct SampleTimes {
    // When its last token came; before the first token of a turn, when the request or the given tokens came.
    absl::Time last_token;
    bool begins_turn = true;
    absl::Time parked_since;
    absl::Duration parked;                  // until now, without the current time
    std::optional<FinishReason> parked_by;  // set while it is parked: how its last turn ended
  };
  struct ActiveRequest {
    GenerationRequest request;
    std::shared_ptr<GenerationSink> sink;
    absl::Time started = absl::InfiniteFuture();
    std::vector<Trajectory> samples;
    std::vector<SampleTimes> times;  // by sample
    int32_t live = 0;
    std::optional<PolicyVersion> pinned;  // the version that answers it, if that is pinned
  };

  Engine(const model::ModelConfig& config, std::shared_ptr<EngineBackend> backend, std::unique_ptr<ModelRunner> runner,
         const Scheduler::Options& options);

  absl::Status CheckTokens(const std::vector<int32_t>& tokens) const;
  static Scheduler::Request SchedulerRequest(const GenerationRequest& request);
  absl::Status Launch();
  absl::Status LaunchPlan(StepPlan& plan);
  // Gives requests with holds_install the version that answers them; see AdapterSets.
  void PinRequests();
  absl::Status AwaitOldest();
  void HandOn(const Scheduler::Drawn& drawn, StepResult& result, absl::Time now);
  absl::Status ReleaseMemory(bool keep_weights);
  void AbortHolding();
  // Ends the turn of a sample, and the sample if it has no turns or its sink says so.
  void EndTurn(uint64_t key, ActiveRequest& active, int32_t sample, FinishReason finish);
  struct ParkedSample {
    uint64_t key = 0;
    ActiveRequest* active = nullptr;
  };
  // Nothing if there is no such sample, or it is not parked.
  std::optional<ParkedSample> FindParked(const std::string& id, int32_t sample);
  void FinishSample(uint64_t key, ActiveRequest& active, int32_t sample, FinishReason reason);

  const int64_t vocab_size_;
  const bool has_adapters_;
  const std::shared_ptr<EngineBackend> backend_;
  const std::unique_ptr<ModelRunner> runner_;
  const size_t plans_under_way_;
  ServingPolicy policy_;
  Scheduler scheduler_;
  std::unordered_map<uint64_t, ActiveRequest> active_;  // by the scheduler's key
  std::deque<ModelRunner::Ticket> launched_;
  uint64_t last_key_ = 0;
  int64_t holding_ = 0;
  std::vector<uint64_t> to_pin_;  // keys of requests that are to be pinned before the next plan
  absl::Time decoded_until_ = absl::InfinitePast();
  int64_t generated_tokens_ = 0;
  RequestFigures figures_;
};

}  // namespace syncopate::rollouter
