#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "base/policy_version.h"
#include "base/trajectory.h"
#include "rollouter/engine/step_plan.h"

namespace syncopate::rollouter {

// The limits and modes of a runner.
struct RunnerOptions {
  int64_t max_sequences = 256;
  int64_t max_prefill_tokens = 4096;
  int64_t max_context = 0;      // tokens of one sequence, at most the model's limit
  int64_t blocks = 0;           // blocks for keys and values; 0: the runner chooses
  int64_t host_blocks = 0;      // blocks for swapping; a runner that cannot swap ignores it
  int64_t lent_bytes = 0;       // memory of keys and values that LendBlocks() frees at least; 0: nothing is lent
  int32_t plans_under_way = 0;  // 0: the runner chooses; it may take fewer
  // True: the bits of a token and its log-probability depend only on the tokens before it, the weights, the seed and
  // the sampling. They do not depend on the other sequences of its batch, on the chunks of its prompt, on a found
  // prefix, or on preemption. They are the same in every process on one kind of device.
  bool deterministic = false;

  // The number of blocks with which max_sequences sequences of max_context tokens have room, so that no request waits
  // for another's blocks.
  int64_t BlocksForAll() const {
    return max_sequences * ((max_context + kBlockTokens - 1) / kBlockTokens) + (max_sequences + 1) / 2;
  }
};

// All draws of one step; every vector is indexed by the number of the draw (see StepPlan).
struct StepResult {
  int64_t plan = 0;
  PolicyVersion version;  // the version of the plan
  std::vector<int32_t> tokens;
  // The log-probability of each token under softmax(logits / temperature) of the model's own logits over the whole
  // vocabulary: before allowed tokens, bias, penalties, min-p, top-k and top-p. At temperature 0 it uses temperature 1.
  std::vector<float> logprobs;
  // Empty if no draw of the step asks for it. Otherwise, for each draw, as many of the likeliest tokens as its sampling
  // asks for (an empty list if none), likeliest first, the lower index first among equals, with log-probabilities as in
  // `logprobs`.
  std::vector<std::vector<TokenLogProb>> top_logprobs;
};

// Executes plans on one model, from embedding to sampler. The keys and values, the block tables and the samplers of all
// slots belong to it. Used by one thread, between BindThread() and UnbindThread(). Launch() and Await() may throw
// c10::Error; after that, or after an error, the runner can only be destroyed.
//
// The weights are those of the backend that made the runner. They may change only while no plan is in progress.
class ModelRunner {
 public:
  struct Capacity {
    int64_t blocks = 0;              // blocks on the device
    int64_t host_blocks = 0;         // blocks for swapping; 0: the runner cannot swap
    int64_t lent_blocks = 0;         // of `blocks`, the last ones, whose memory LendBlocks() frees
    int64_t max_kept_blocks = 1024;  // the most blocks without a user that are worth keeping for their prefix
    // The most plans in progress before the oldest one must be awaited. 1: each step's tokens are known before the next
    // step is planned. 2: the runner has a plan to work on while the tokens of the previous plan are processed.
    int32_t plans_under_way = 1;
    bool serves_base = false;  // whether it can run sequences of the base beside those of the policy (kBaseAdapter)
  };
  // Identifies a launched plan.
  struct Ticket {
    int64_t plan = 0;
  };

  virtual ~ModelRunner() = default;
  virtual Capacity capacity() const = 0;
  // Memory of keys and values allocated now on the device, and in host memory for swapped blocks.
  virtual int64_t kv_bytes() const = 0;
  virtual int64_t host_kv_bytes() const = 0;
  // Device memory that steps need beside weights, keys and values, as it is allocated now; 0 on the CPU.
  virtual int64_t buffer_bytes() const { return 0; }
  // ReleaseBlocks() frees the memory of keys and values and loses their contents; no step may run before
  // RestoreBlocks(). Runners with fixed addresses keep them. Precondition: no plan is in progress. A repeated call does
  // nothing. RestoreBlocks(): RESOURCE_EXHAUSTED if there is too little memory now; it may be called again.
  virtual absl::Status ReleaseBlocks() = 0;
  virtual absl::Status RestoreBlocks() = 0;

  // LendBlocks() frees the memory of the last capacity().lent_blocks blocks, whose contents are lost; no plan may use
  // them before ReturnBlocks(). Plans of other blocks may be in progress during both. A repeated call does nothing.
  // ReturnBlocks(): RESOURCE_EXHAUSTED if there is too little memory now.
  virtual absl::Status LendBlocks() { return absl::OkStatus(); }
  virtual absl::Status ReturnBlocks() { return absl::OkStatus(); }

  // The thread that calls BindThread() makes all calls until UnbindThread().
  virtual void BindThread() {}
  virtual void UnbindThread() {}

  // Queues a plan behind those in progress and returns. `plan` is not needed after the call.
  virtual absl::StatusOr<Ticket> Launch(const StepPlan& plan) = 0;
  // Blocks until the plan's draws are known. Await tickets in the order of their launches, each once.
  virtual absl::StatusOr<StepResult> Await(const Ticket& ticket) = 0;
  // Blocks until no work reads the weights. Precondition: every ticket was awaited.
  virtual absl::Status Synchronize() { return absl::OkStatus(); }
};

}  // namespace syncopate::rollouter
