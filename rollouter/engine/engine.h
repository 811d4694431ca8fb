#pragma once

#include <cstdint>
#include <deque>
#include <memory>
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

// Continuous batching on one thread: the scheduler plans steps, the backend's runner executes them, and what they drew
// goes to the requests' sinks. Sequences join and leave at any step. Not thread-safe: EngineLoop owns it. Create(),
// BindThread(), Step(), AwaitLaunched() and Synchronize() may throw c10::Error; after that, or after an error of theirs, only
// Abort() makes sense.
class Engine {
 public:
  struct Options {
    int64_t max_sequences = 256;     // that run at once
    int64_t max_prefill_tokens = 0;  // per step, longer prompts are prefilled in chunks; 0: as the backend chooses
    int64_t max_context = 0;         // tokens of one sequence; 0: the model's
    int64_t kv_blocks = 0;           // for keys and values; 0: as the backend's runner chooses
    int64_t host_kv_blocks = 0;      // to swap to
    int64_t max_kept_blocks = -1;    // blocks without a user that are kept for their prefix; -1: the runner's
    int32_t plans_under_way = 0;     // 0: as the backend's runner chooses
    Scheduler::Preemption preemption = Scheduler::Preemption::kRecompute;
    bool follow_usage = true;    // as Scheduler::Options::follow_usage
    bool deterministic = false;  // as RunnerOptions::deterministic
    absl::Status Validate() const;
  };

  // `config` must be valid, and `backend` made for it. RESOURCE_EXHAUSTED if there is no memory.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const model::ModelConfig& config,
                                                        std::shared_ptr<EngineBackend> backend, const Options& options);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // INVALID_ARGUMENT (reason BAD_REQUEST) if the request can never run. Reads only what never changes, so any thread
  // may call it.
  absl::Status CheckShape(const GenerationRequest& request) const;

  // Queues a request that passed CheckShape(); one that holds installs goes to the front.
  void Add(GenerationRequest request, std::shared_ptr<GenerationSink> sink);

  // Ends a request (every request if `id` is empty). Its samples get OnFinished with kAborted. Returns how many
  // sequences ended.
  int32_t Abort(const std::string& id);

  bool HasWork() const { return scheduler_.HasWork() || !launched_.empty(); }
  // A request that asked for one version throughout is under way: an install must wait.
  bool InstallHeld() const { return holding_ > 0; }

  // The calling thread makes all steps between the two. (Steps without them run on the thread's present stream.)
  void BindThread() { runner_->BindThread(); }
  void UnbindThread() { runner_->UnbindThread(); }

  // Launches a step, and hands on what an earlier one drew when there are enough under way. Precondition: HasWork() and
  // has weights.
  absl::Status Step();
  // Hands on what all launched steps drew.
  absl::Status AwaitLaunched();
  // The same, and blocks until nothing reads the weights. Before they change.
  absl::Status Synchronize();

  // Gives the memory of weights, keys and values back, and says how much of it that was; the live weights stay in host
  // memory with `keep_weights`, else nothing serves. No step before WakeUp(). Once more only takes what is left.
  // Precondition: !HasWork(), and nobody receives. RESOURCE_EXHAUSTED: nothing has changed; after another error the
  // engine cannot go on. The same for WakeUp().
  absl::StatusOr<int64_t> Sleep(bool keep_weights);
  absl::Status WakeUp();

  ServingPolicy& policy() { return policy_; }
  const ServingPolicy& policy() const { return policy_; }

  int64_t running_sequences() const { return scheduler_.running_sequences(); }
  int64_t waiting_sequences() const { return scheduler_.waiting_sequences(); }
  double kv_usage() const { return scheduler_.block_usage(); }
  int64_t kv_bytes() const { return runner_->kv_bytes(); }
  int64_t buffer_bytes() const { return runner_->buffer_bytes(); }
  int64_t weight_bytes() const { return backend_->arenas().bytes(); }
  EngineBackend& backend() { return *backend_; }
  int64_t generated_tokens() const { return generated_tokens_; }
  int64_t prefilled_tokens() const { return scheduler_.counters().prefilled_tokens; }  // of prompts
  const Scheduler::Counters& counters() const { return scheduler_.counters(); }
  const RequestFigures& request_figures() const { return figures_; }

 private:
  struct ActiveRequest {
    GenerationRequest request;
    std::shared_ptr<GenerationSink> sink;
    absl::Time started = absl::InfiniteFuture();
    std::vector<Trajectory> samples;
    std::vector<absl::Time> last_tokens;  // of each sample; the request's arrival before its first
    int32_t live = 0;
  };

  Engine(const model::ModelConfig& config, std::shared_ptr<EngineBackend> backend, std::unique_ptr<ModelRunner> runner,
         const Scheduler::Options& options);

  static Scheduler::Request SchedulerRequest(const GenerationRequest& request);
  absl::Status Launch();
  absl::Status AwaitOldest();
  void HandOn(const Scheduler::Drawn& drawn, StepResult& result, absl::Time now);
  void FinishSample(uint64_t key, ActiveRequest& active, int32_t sample, FinishReason reason);

  const int64_t vocab_size_;
  const std::shared_ptr<EngineBackend> backend_;
  const std::unique_ptr<ModelRunner> runner_;
  const size_t plans_under_way_;
  ServingPolicy policy_;
  Scheduler scheduler_;
  std::unordered_map<uint64_t, ActiveRequest> active_;  // by the scheduler's key
  std::deque<ModelRunner::Ticket> launched_;
  uint64_t last_key_ = 0;
  int64_t holding_ = 0;
  int64_t generated_tokens_ = 0;
  RequestFigures figures_;
};

}  // namespace syncopate::rollouter
