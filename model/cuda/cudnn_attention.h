#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"

namespace syncopate::model {

// Packed sequences. Causal attention stays inside each, with scores scaled by 1 / sqrt(head_dim). The queries of
// sequence i are rows [starts[i], starts[i + 1]): its newest tokens. Its keys and values are all of its tokens, in rows
// [key_starts[i], key_starts[i + 1]), or in the same rows as its queries if key_starts is null. bf16 device memory,
// aligned to 16 bytes: a row of queries has heads * head_dim numbers, and rows are `query_stride` numbers apart; a row
// of keys or of values has kv_heads * head_dim numbers, and rows are `key_stride` apart. All three may be views of one
// projection.
struct AttentionInputs {
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t sequences = 0;
  const int32_t* starts = nullptr;  // [sequences + 1] device memory, from 0 to `rows` or between
  int64_t rows = 0;
  int64_t longest = 0;                  // most rows of queries in one sequence
  const int32_t* key_starts = nullptr;  // [sequences + 1] device memory, from 0 to `key_rows`; or null
  int64_t key_rows = 0;
  int64_t longest_key = 0;
  const void* queries = nullptr;
  const void* keys = nullptr;
  const void* values = nullptr;
  int64_t query_stride = 0;
  int64_t key_stride = 0;
  // The backward pass adds in a fixed order, so that a repeated one is bit-identical. Give Forward() and Backward() the
  // same.
  bool deterministic = false;
};

// Results of a forward pass, all dense.
struct AttentionOutputs {
  void* attended = nullptr;  // [rows, heads * head_dim] bf16
  // [rows, heads]: log of the sum of exponentials of a row's scores. Null: not computed. If not null, key_starts must
  // be null.
  float* stats = nullptr;
};

// Gradients of a loss. Rows of queries are query_stride apart, as in the inputs; keys and values are dense: cuDNN
// reserves workspace for a gradient of each *query* head with the strides of keys and values, which for views of a
// projection would be several times the projection.
struct AttentionGradients {
  const void* attended = nullptr;  // [rows, heads * head_dim], input
  void* queries = nullptr;         // queries, keys and values are results
  void* keys = nullptr;            // [rows, kv_heads * head_dim]
  void* values = nullptr;
};

// Causal attention of packed sequences by cuDNN, which is up to twice as fast as FlashAttention-2 on an H100 or H200:
// bf16 with float32 sums, head sizes 64 and 128, any number of query heads for each key/value head.
//
// cuDNN needs a plan for each shape (heads, strides, number and length of sequences), which takes 40 ms to make, or 80
// ms with a backward pass. So the number of sequences, filled up with empty ones, and the longest one's length are
// rounded up to few sizes, and the most recently used plans are cached.
//
// There is one object for each GPU, never destroyed. Thread-safe: calls of several threads take turns. All work is
// queued on the stream that a call names; no call waits for the device, except when it drops a plan to make a new one.
class CudnnAttention {
 public:
  static constexpr int kMostPlans = 96;
  // The most memory that a deterministic backward pass may borrow for its scores: sequences * heads * longest^2 bf16
  // numbers. A constant, as a limit that depends on free memory would give one process other bits than another.
  static constexpr int64_t kMostOrderedBytes = int64_t{4} << 30;

  // Returns device memory that the call may use until the work that it queued on its stream is done. May throw; then
  // the call throws too.
  using Lend = std::function<void*(int64_t bytes)>;

  // What a deterministic backward pass of so many sequences, up to `longest` tokens each, borrows for its scores.
  static int64_t OrderedBytes(int64_t heads, int64_t sequences, int64_t longest);

  static CudnnAttention& On(int device);
  ~CudnnAttention();
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  // The forward pass. With outputs.stats, Backward() can follow: a shape is refused here if cuDNN refuses its forward
  // or its backward pass.
  //   UNIMPLEMENTED reason CUDNN_REFUSES  cuDNN cannot be used here at all, or not for this shape, or the deterministic
  //                                       backward pass needs more than kMostOrderedBytes of it. Nothing was queued: use
  //                                       another implementation. The first refusal on this GPU is logged.
  //   INTERNAL      reason CUDNN_ERROR or CUDA_ERROR
  absl::Status Forward(const AttentionInputs& inputs, const AttentionOutputs& outputs, const Lend& lend,
                       cudaStream_t stream);
  // Makes the plans that Forward() without stats needs for up to most.sequences sequences: without key_starts, and with
  // up to most.longest_key keys. An engine calls it before it serves. `most` also gives heads and strides. Forward()
  // refuses what cuDNN refuses here. These plans are never dropped, so that work that Forward() queues with them may be
  // captured. Returns the most memory that such a call borrows; 0 if cuDNN refuses one of the plans.
  int64_t Prepare(const AttentionInputs& most);
  // The backward pass. `outputs` are Forward()'s results for the same inputs, with stats. The gradients of queries are
  // added in no fixed order unless inputs.deterministic.
  absl::Status Backward(const AttentionInputs& inputs, const AttentionOutputs& outputs,
                        const AttentionGradients& gradients, const Lend& lend, cudaStream_t stream);

  static bool IsRefusal(const absl::Status& status) { return status.code() == absl::StatusCode::kUnimplemented; }
  // The number of plans made so far and the time that took, for measurements.
  struct Effort {
    int plans = 0;
    double seconds = 0;
  };
  Effort effort() const;

 private:
  struct State;
  explicit CudnnAttention(int device);
  std::unique_ptr<State> state_;
};

}  // namespace syncopate::model
