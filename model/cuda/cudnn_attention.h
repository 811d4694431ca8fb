#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"

namespace syncopate::model {

// Sequences that lie end to end. Causal attention stays inside each, with scores scaled by 1 / sqrt(head_dim). The queries
// of sequence i are rows [starts[i], starts[i + 1]), its newest tokens; its keys and values are all of its tokens, in the
// rows [key_starts[i], key_starts[i + 1]), or in the same rows as its queries if key_starts is null. bf16 device memory on
// 16 bytes: a row of queries has heads * head_dim numbers and the next one begins `query_stride` numbers further; one of
// keys, and one of values, has kv_heads * head_dim and begins `key_stride` further. All three may be views of one
// projection.
struct AttentionInputs {
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t sequences = 0;
  const int32_t* starts = nullptr;  // [sequences + 1] device memory, from 0 to `rows`
  int64_t rows = 0;
  int64_t longest = 0;                  // of the sequences' rows
  const int32_t* key_starts = nullptr;  // likewise, with these two
  int64_t key_rows = 0;
  int64_t longest_key = 0;
  const void* queries = nullptr;
  const void* keys = nullptr;
  const void* values = nullptr;
  int64_t query_stride = 0;
  int64_t key_stride = 0;
};

// What a forward pass leaves, all dense.
struct AttentionOutputs {
  void* attended = nullptr;  // [rows, heads * head_dim] bf16
  // [rows, heads]: log of the sum of exponentials of a row's scores. Null: nobody wants them; needs key_starts to be null.
  float* stats = nullptr;
};

// Of a loss. Rows of queries are query_stride apart, as those of the inputs; keys and values are dense: cuDNN makes room
// in its workspace for a gradient of each *query* head in the same strides, which for views of a projection would be
// several times the projection.
struct AttentionGradients {
  const void* attended = nullptr;  // [rows, heads * head_dim]
  void* queries = nullptr;         // the other three are results
  void* keys = nullptr;            // [rows, kv_heads * head_dim]
  void* values = nullptr;
};

// Causal attention of packed sequences by cuDNN, which is up to twice as fast as FlashAttention-2 on an H100 or H200:
// bf16 with float32 sums, head sizes 64 and 128, any number of query heads a key/value head.
//
// cuDNN has a plan for each shape: heads, strides, number and length of sequences, which takes it 40 ms to make, with a
// backward half 80. So the number of sequences, filled up by empty ones, and the longest one's length are rounded up to
// few sizes, and the plans used last are kept.
//
// One for each GPU, for ever. Thread-safe: calls of several threads take turns. All work is queued on the stream that a
// call names; nothing waits for the device, unless a plan is dropped for a new one.
class CudnnAttention {
 public:
  static constexpr int kMostPlans = 96;

  // Device memory that belongs to the call until what it queued on its stream is done. May throw; then so does the call.
  using Lend = std::function<void*(int64_t bytes)>;

  static CudnnAttention& On(int device);
  ~CudnnAttention();
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  // With outputs.stats it is the first half of a training step, which Backward() can follow: a shape of which cuDNN
  // refuses either half is refused here.
  //   UNIMPLEMENTED reason CUDNN_REFUSES  cuDNN cannot be used here at all, or not for this shape: nothing was queued, use
  //                                       something else. The first refusal of a process is logged.
  //   INTERNAL      reason CUDNN_ERROR or CUDA_ERROR
  absl::Status Forward(const AttentionInputs& inputs, const AttentionOutputs& outputs, const Lend& lend,
                       cudaStream_t stream);
  // Makes the plans that Forward() without stats wants for up to most.sequences sequences, whole ones and, with up to
  // most.longest_key keys, others: an engine has them before it serves. Of `most`, heads and strides count besides. What
  // cuDNN refuses here, Forward() refuses. These plans are never dropped, so that what Forward() queues with them may be
  // captured. Returns the most memory that such a call borrows; 0 if cuDNN refuses one of them.
  int64_t Prepare(const AttentionInputs& most);
  // `outputs` are what Forward() made of the same inputs, with stats. Sums of several query heads' gradients are added in
  // no fixed order.
  absl::Status Backward(const AttentionInputs& inputs, const AttentionOutputs& outputs,
                        const AttentionGradients& gradients, const Lend& lend, cudaStream_t stream);

  static bool IsRefusal(const absl::Status& status) { return status.code() == absl::StatusCode::kUnimplemented; }
  // Of plans made so far, for measurements: how many, and what they took.
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
