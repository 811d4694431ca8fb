#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "base/policy_version.h"
#include "base/trajectory.h"
#include "rollouter/engine/step_plan.h"

namespace syncopate::rollouter {

// The limits and promises of a runner, fixed when it is made.
struct RunnerOptions {
  int64_t max_sequences = 256;
  int64_t max_prefill_tokens = 4096;
  int64_t max_context = 0;      // tokens of one sequence, at most the model's
  int64_t blocks = 0;           // for keys and values; 0: the runner chooses
  int64_t host_blocks = 0;      // to swap to; a runner that cannot swap has none
  int32_t plans_under_way = 0;  // 0: the runner chooses; it may take fewer
  // The bits of a token and its log-probability depend on the tokens before it, the weights, the seed and the sampling
  // alone: not on the other requests of its batch, on how its prompt is cut, on whether a prefix was found, or on whether
  // the request was preempted and computed again. They are the same in every process on one kind of device.
  bool deterministic = false;

  // The number of blocks with which max_sequences sequences of max_context tokens have room, so that no request waits
  // for another's blocks.
  int64_t BlocksForAll() const {
    return max_sequences * ((max_context + kBlockTokens - 1) / kBlockTokens) + (max_sequences + 1) / 2;
  }
};

// What a runner drew in one step, all of it at once; everything by the number of the draw (see StepPlan).
struct StepResult {
  int64_t plan = 0;
  PolicyVersion version;  // the plan's
  std::vector<int32_t> tokens;
  // Of each token under softmax(logits / temperature) of the model's own logits over the whole vocabulary: before
  // allowed tokens, bias, penalties, min-p, top-k and top-p. At temperature 0 the temperature is taken as 1 for it.
  std::vector<float> logprobs;
  // Empty if no draw of the step asks; else, of each draw, as many of the likeliest tokens as its sampling asks for
  // (none: an empty list), likeliest first, the lower index first among equals, in the same terms as `logprobs`.
  std::vector<std::vector<TokenLogProb>> top_logprobs;
};

// Executes plans on one model, from embedding to sampler: the keys and values, the block tables and the samplers of all
// slots live behind it. Belongs to one thread, between BindThread() and UnbindThread(). Launch() and Await() may throw
// c10::Error; after that, or after an error, the only thing to do is to destroy it.
//
// The weights are those of the backend that made it. They may change only while nothing is under way.
class ModelRunner {
 public:
  struct Capacity {
    int64_t blocks = 0;              // on the device
    int64_t host_blocks = 0;         // to swap to; 0: it cannot swap
    int64_t max_kept_blocks = 1024;  // worth keeping without a user, for the prefix they hold
    // How many plans may be under way before the oldest one must be awaited. 1: each step's tokens are known before the
    // next is planned. 2: it has a plan to go on with while the tokens of the one before are looked at.
    int32_t plans_under_way = 1;
  };
  // Names a launched plan.
  struct Ticket {
    int64_t plan = 0;
  };

  virtual ~ModelRunner() = default;
  virtual Capacity capacity() const = 0;
  // Of keys and values: memory held now, on the device and on the host.
  virtual int64_t kv_bytes() const = 0;
  // Device memory taken for life beside that: what steps compute in.
  virtual int64_t buffer_bytes() const { return 0; }
  // Gives the memory of keys and values back, and what they hold is lost; no step before RestoreBlocks(). Where addresses
  // are for life they stay. Nothing is under way. Both do nothing if it is so already. RestoreBlocks():
  // RESOURCE_EXHAUSTED if there is no memory now, and it may be called again.
  virtual absl::Status ReleaseBlocks() = 0;
  virtual absl::Status RestoreBlocks() = 0;

  // The calling thread makes all calls between the two.
  virtual void BindThread() {}
  virtual void UnbindThread() {}

  // Queues a plan behind those that are under way and returns. The plan is not needed after that.
  virtual absl::StatusOr<Ticket> Launch(const StepPlan& plan) = 0;
  // Blocks until the plan's draws are there. Tickets are awaited in the order of their launches, each once.
  virtual absl::StatusOr<StepResult> Await(const Ticket& ticket) = 0;
  // Blocks until nothing that reads the weights is under way. Every ticket has been awaited.
  virtual absl::Status Synchronize() { return absl::OkStatus(); }
};

}  // namespace syncopate::rollouter
