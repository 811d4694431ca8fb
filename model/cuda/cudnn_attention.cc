#include "model/cuda/cudnn_attention.h"

#include <cudnn_frontend.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/status.h"
#include "cuda/cuda_status.h"
#include "cuda/device.h"
#include "model/cuda/ragged_offsets.h"

namespace syncopate::model {
namespace {

namespace fe = cudnn_frontend;
using fe::graph::Graph;
using fe::graph::SDPA_attributes;
using fe::graph::SDPA_backward_attributes;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

// Before 9.6 the workspace of the backward pass grows with sequences * longest instead of with rows.
constexpr size_t kLeastVersion = 90600;
// The smallest sizes that plans are made for. On an H200, a larger longest sequence costs no time, and an empty
// sequence costs 0.2 us for each layer.
constexpr int64_t kLeastLength = 16384;
constexpr int64_t kLeastRows = 1024;  // the workspace of the backward pass grows with the rows
// The workspace of a deterministic backward pass grows with the square of the longest sequence, so it is rounded up
// less.
constexpr int64_t kLeastOrderedLength = 256;
constexpr int64_t kLeastPrompts = 8;
constexpr int64_t kAlignment = 256;  // of the workspace

// The numbers by which an execution names the tensors of a graph; offsets follow. The frontend gives its own tensors
// the lowest numbers that the graph does not use, and an execution may name tensors that its graph does not have: so
// our numbers are high.
enum Number : int64_t {
  kQueries = 1 << 20,
  kKeys,
  kValues,
  kAttended,
  kStats,
  kAttendedGradient,
  kQueryGradient,
  kKeyGradient,
  kValueGradient,
  kQueryLengths,
  kKeyLengths,
};
constexpr int64_t kFirstOffsets = kKeyLengths + 1;
// Kinds of rows that a tensor may have: RaggedOffsets has an array for each.
enum Rows { kOfQueries, kOfKeys, kOfAttended, kOfStats, kOfKeyGradients };
static_assert(kOfKeyGradients + 1 == RaggedOffsets::kTensors);

// The shape that a plan is made for.
struct Shape {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t query_stride = 0, key_stride = 0;
  int64_t batch = 0;    // number of sequences
  int64_t longest = 0;  // most queries of one sequence
  // Most keys of one sequence, if there may be more keys than queries; 0: keys and queries are the same rows.
  int64_t longest_key = 0;
  int64_t rows = 0;            // most rows in all; 0: there is no backward pass
  bool deterministic = false;  // the backward pass adds in a fixed order

  // All fields are part of the key, because sizes and strides are fixed in a plan.
  auto Parts() const {
    return std::tie(heads, kv_heads, head_dim, query_stride, key_stride, batch, longest, longest_key, rows,
                    deterministic);
  }
  bool operator<(const Shape& other) const { return Parts() < other.Parts(); }
};

struct Layout {
  int64_t heads = 0;
  int64_t columns = 0;  // numbers of a head
  int64_t stride = 0;   // elements from row to row
  bool of_keys = false;
};

Layout MakeLayout(Rows rows, const Shape& shape) {
  switch (rows) {
    case kOfQueries:
      return {shape.heads, shape.head_dim, shape.query_stride, false};
    case kOfKeys:
      return {shape.kv_heads, shape.head_dim, shape.key_stride, true};
    case kOfAttended:
      return {shape.heads, shape.head_dim, shape.heads * shape.head_dim, false};
    case kOfStats:
      return {shape.heads, 1, shape.heads, false};
    case kOfKeyGradients:
      return {shape.kv_heads, shape.head_dim, shape.kv_heads * shape.head_dim, true};
  }
  return {};
}

struct Plans {
  std::unique_ptr<Graph> forward;
  std::unique_ptr<Graph> backward;  // null if Shape::rows is 0
};

absl::Status Refusal(const std::string& why) {
  return Error(absl::StatusCode::kUnimplemented, "CUDNN_REFUSES", absl::StrCat("cuDNN: ", why));
}

absl::Status FrontendStatus(fe::error_t error, absl::StatusCode code) {
  if (!error.is_bad()) return absl::OkStatus();
  return code == absl::StatusCode::kUnimplemented
             ? Refusal(error.get_message())
             : Error(code, "CUDNN_ERROR", absl::StrCat("cuDNN: ", error.get_message()));
}

// Rounds up to one of the allowed sizes: `steps` for each doubling, from `least` on.
int64_t RoundUp(int64_t value, int64_t steps, int64_t least) {
  int64_t power = least;
  if (value <= power) return power;
  while (power * 2 < value) power *= 2;
  const int64_t step = std::max<int64_t>(1, power / steps);
  return (value + step - 1) / step * step;
}

// Sizes of plans with a backward pass.
int64_t TrainingBatch(int64_t sequences) { return RoundUp(sequences, /*steps=*/4, /*least=*/1); }
int64_t OrderedLength(int64_t longest) { return RoundUp(longest, /*steps=*/4, kLeastOrderedLength); }

// Builds the description of one plan's graph.
class Sketch {
 public:
  explicit Sketch(const Shape& shape) : shape_(shape), graph_(std::make_unique<Graph>()) {
    // Products take bf16; sums, the softmax and its statistics are float32.
    graph_->set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    query_lengths_ = Integers("query lengths", kQueryLengths, shape.batch);
    key_lengths_ = shape.longest_key > 0 ? Integers("key lengths", kKeyLengths, shape.batch) : query_lengths_;
  }

  Tensor Input(const char* name, Number number, Rows rows) {
    fe::graph::Tensor_attributes tensor;
    Describe(tensor.set_name(name), number, rows);
    return graph_->tensor(tensor);
  }
  void Output(const Tensor& tensor, Number number, Rows rows) { Describe(tensor->set_output(true), number, rows); }
  template <typename Attributes>
  Attributes& SetMask(Attributes& attributes) const {
    // With fewer queries than keys, the diagonal ends at the last key, because the queries are the newest tokens.
    return attributes.set_attn_scale(1 / std::sqrt(static_cast<float>(shape_.head_dim)))
        .set_padding_mask(true)
        .set_seq_len_q(query_lengths_)
        .set_seq_len_kv(key_lengths_)
        .set_diagonal_alignment(shape_.longest_key > 0 ? fe::DiagonalAlignment_t::BOTTOM_RIGHT
                                                       : fe::DiagonalAlignment_t::TOP_LEFT)
        .set_diagonal_band_right_bound(0);
  }
  Graph& graph() { return *graph_; }

  absl::StatusOr<std::unique_ptr<Graph>> Build(cudnnHandle_t handle) && {
    SYNCOPATE_RETURN_IF_ERROR(
        FrontendStatus(graph_->build(handle, {fe::HeurMode_t::A}), absl::StatusCode::kUnimplemented));
    return std::move(graph_);
  }

 private:
  Tensor Integers(const std::string& name, int64_t number, int64_t count) {
    return graph_->tensor(fe::graph::Tensor_attributes()
                              .set_name(name)
                              .set_uid(number)
                              .set_dim({count, 1, 1, 1})
                              .set_stride({1, 1, 1, 1})
                              .set_data_type(fe::DataType_t::INT32));
  }
  // Makes the tensor at its first use, because a graph may not have a tensor that no operation uses.
  const Tensor& GetOffsets(Rows rows) {
    Tensor& tensor = offsets_[rows];
    if (!tensor) tensor = Integers(absl::StrCat("offsets ", rows), kFirstOffsets + rows, shape_.batch + 1);
    return tensor;
  }
  // For cuDNN a packed tensor is [batch, heads, longest, columns], and its sequences begin at their offsets.
  void Describe(fe::graph::Tensor_attributes& tensor, Number number, Rows rows) {
    const Layout layout = MakeLayout(rows, shape_);
    const int64_t longest = layout.of_keys && shape_.longest_key > 0 ? shape_.longest_key : shape_.longest;
    tensor.set_uid(number)
        .set_dim({shape_.batch, layout.heads, longest, layout.columns})
        .set_stride({longest * layout.stride, layout.columns, layout.stride, 1})
        .set_ragged_offset(GetOffsets(rows))
        .set_data_type(rows == kOfStats ? fe::DataType_t::FLOAT : fe::DataType_t::BFLOAT16);
  }

  const Shape& shape_;
  std::unique_ptr<Graph> graph_;
  Tensor query_lengths_, key_lengths_;
  std::array<Tensor, RaggedOffsets::kTensors> offsets_;
};

absl::StatusOr<std::unique_ptr<Graph>> BuildForward(const Shape& shape, bool wants_stats, cudnnHandle_t handle) {
  Sketch sketch(shape);
  SDPA_attributes attributes;
  sketch.SetMask(attributes.set_name("forward").set_generate_stats(wants_stats));
  const Tensor queries = sketch.Input("queries", kQueries, kOfQueries);
  const Tensor keys = sketch.Input("keys", kKeys, kOfKeys);
  const Tensor values = sketch.Input("values", kValues, kOfKeys);
  const auto [attended, stats] = sketch.graph().sdpa(queries, keys, values, attributes);
  sketch.Output(attended, kAttended, kOfAttended);
  if (wants_stats) sketch.Output(stats, kStats, kOfStats);
  return std::move(sketch).Build(handle);
}

absl::StatusOr<std::unique_ptr<Graph>> BuildBackward(const Shape& shape, cudnnHandle_t handle) {
  Sketch sketch(shape);
  SDPA_backward_attributes attributes;
  sketch.SetMask(attributes.set_name("backward"))
      .set_max_total_seq_len_q(shape.rows)
      .set_max_total_seq_len_kv(shape.rows)
      .set_deterministic_algorithm(shape.deterministic);
  const Tensor queries = sketch.Input("queries", kQueries, kOfQueries);
  const Tensor keys = sketch.Input("keys", kKeys, kOfKeys);
  const Tensor values = sketch.Input("values", kValues, kOfKeys);
  const Tensor attended = sketch.Input("attended", kAttended, kOfAttended);
  const Tensor gradient = sketch.Input("gradient of attended", kAttendedGradient, kOfAttended);
  const Tensor stats = sketch.Input("stats", kStats, kOfStats);
  const auto [dqueries, dkeys, dvalues] =
      sketch.graph().sdpa_backward(queries, keys, values, attended, gradient, stats, attributes);
  sketch.Output(dqueries, kQueryGradient, kOfQueries);
  sketch.Output(dkeys, kKeyGradient, kOfKeyGradients);
  sketch.Output(dvalues, kValueGradient, kOfKeyGradients);
  return std::move(sketch).Build(handle);
}

absl::StatusOr<std::shared_ptr<const Plans>> BuildPlans(const Shape& shape, cudnnHandle_t handle) {
  auto plans = std::make_shared<Plans>();
  const bool trains = shape.rows > 0;
  try {
    SYNCOPATE_ASSIGN_OR_RETURN(plans->forward, BuildForward(shape, /*stats=*/trains, handle));
    if (trains) {
      SYNCOPATE_ASSIGN_OR_RETURN(plans->backward, BuildBackward(shape, handle));
    }
  } catch (const std::exception& error) {  // thrown by the frontend's containers and by cuDNN's old descriptors
    return Refusal(error.what());
  }
  return std::shared_ptr<const Plans>(std::move(plans));
}

absl::StatusOr<cudnnHandle_t> MakeHandle() {
  const size_t version = cudnnGetVersion();
  if (version < kLeastVersion) {
    return Refusal(absl::StrCat("version ", version, " is older than ", kLeastVersion));
  }
  cudnnHandle_t handle = nullptr;
  // Fails also if a library that libcudnn.so loads is missing: cuDNN then names that library on standard error.
  if (const cudnnStatus_t status = cudnnCreate(&handle); status != CUDNN_STATUS_SUCCESS) {
    std::string words(256, '\0');
    cudnnGetLastErrorString(words.data(), words.size());
    return Refusal(absl::StrCat("libcudnn.so.9 does not start: ", cudnnGetErrorString(status), " ", words.c_str()));
  }
  return handle;
}

}  // namespace

struct CudnnAttention::State {
  struct Kept {
    absl::StatusOr<std::shared_ptr<const Plans>> plans;
    int64_t used = 0;  // number of the last call that used it
    bool stays = false;
  };

  explicit State(int device) : device(device) {}

  // The plans for a shape, from the cache or newly made. `stay`: they are never dropped.
  absl::StatusOr<std::shared_ptr<const Plans>> PlansFor(const Shape& shape, bool stay) ABSL_LOCKS_EXCLUDED(mutex);
  absl::Status MakeRoom() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Executes the forward or backward pass of the plans for `inputs`; `tensors`: the tensors other than inputs and
  // offsets.
  absl::Status Execute(bool forward, bool trains, const AttentionInputs& inputs,
                       std::unordered_map<int64_t, void*> tensors, const Lend& lend, cudaStream_t stream)
      ABSL_LOCKS_EXCLUDED(mutex);

  const int device;
  mutable Mutex mutex;
  absl::StatusOr<cudnnHandle_t> handle ABSL_GUARDED_BY(mutex) = absl::UnknownError("not made");
  bool started ABSL_GUARDED_BY(mutex) = false;
  bool complained ABSL_GUARDED_BY(mutex) = false;
  std::map<Shape, Kept> kept ABSL_GUARDED_BY(mutex);
  int64_t calls ABSL_GUARDED_BY(mutex) = 0;
  Effort effort ABSL_GUARDED_BY(mutex);
};

namespace {

// The shape of the plan for `inputs`, or a refusal without asking cuDNN.
absl::StatusOr<Shape> ShapeFor(const AttentionInputs& inputs, bool trains) {
  if (inputs.head_dim != 64 && inputs.head_dim != 128) {
    return Refusal(absl::StrCat("used for head sizes 64 and 128, not ", inputs.head_dim));
  }
  const int64_t widest = std::max({inputs.query_stride, inputs.key_stride, int64_t{inputs.heads} * inputs.head_dim});
  const int64_t rows = std::max(inputs.rows, inputs.key_rows);
  // Ragged offsets are int32 and count elements.
  if (rows > std::numeric_limits<int32_t>::max() / widest) {
    return Refusal(absl::StrCat(rows, " rows of ", widest, " numbers have offsets above 2^31"));
  }
  SYNCOPATE_CHECK(!trains || inputs.key_starts == nullptr);
  const bool ordered = trains && inputs.deterministic;
  const int64_t scores = CudnnAttention::OrderedBytes(inputs.heads, inputs.sequences, inputs.longest);
  if (ordered && scores > CudnnAttention::kMostOrderedBytes) {
    return Refusal(absl::StrFormat("a deterministic backward pass of %d sequences of up to %d tokens takes %d MiB",
                                   inputs.sequences, inputs.longest, scores >> 20));
  }
  // Rounds more finely for training, whose shapes repeat. An engine's plans are made before it serves, so there must be
  // few.
  return Shape{
      .heads = inputs.heads,
      .kv_heads = inputs.kv_heads,
      .head_dim = inputs.head_dim,
      .query_stride = inputs.query_stride,
      .key_stride = inputs.key_stride,
      .batch = trains ? TrainingBatch(inputs.sequences) : RoundUp(inputs.sequences, /*steps=*/1, kLeastPrompts),
      .longest = ordered ? OrderedLength(inputs.longest) : RoundUp(inputs.longest, /*steps=*/1, kLeastLength),
      .longest_key = inputs.key_starts != nullptr ? RoundUp(inputs.longest_key, /*steps=*/1, kLeastLength) : 0,
      .rows = trains ? RoundUp(inputs.rows, /*steps=*/2, kLeastRows) : 0,
      .deterministic = ordered};
}

RaggedOffsets OffsetsFor(const Shape& shape) {
  RaggedOffsets ragged{.batch = static_cast<int32_t>(shape.batch)};
  for (int i = 0; i < RaggedOffsets::kTensors; ++i) {
    const Layout layout = MakeLayout(static_cast<Rows>(i), shape);
    ragged.strides[i] = static_cast<int32_t>(layout.stride);
    ragged.of_keys[i] = layout.of_keys;
  }
  return ragged;
}

int64_t OffsetBytes(const RaggedOffsets& ragged) { return (ragged.bytes() + kAlignment - 1) / kAlignment * kAlignment; }

// Bytes that a call borrows in one piece: the offsets, followed by the graph's workspace.
absl::StatusOr<int64_t> BorrowedBytes(const RaggedOffsets& ragged, const Graph& graph) {
  int64_t workspace = 0;
  SYNCOPATE_RETURN_IF_ERROR(FrontendStatus(graph.get_workspace_size(workspace), absl::StatusCode::kInternal));
  return OffsetBytes(ragged) + workspace;
}

}  // namespace

absl::Status CudnnAttention::State::MakeRoom() {
  if (kept.size() < static_cast<size_t>(kMostPlans)) return absl::OkStatus();
  const auto oldest = std::min_element(kept.begin(), kept.end(), [](const auto& a, const auto& b) {
    return std::tie(a.second.stays, a.second.used) < std::tie(b.second.stays, b.second.used);
  });
  // All plans must stay: exceeds the limit by one plan.
  if (oldest->second.stays) return absl::OkStatus();
  // Waits, because the plan's kernels may be running and are unloaded with it.
  SYNCOPATE_RETURN_IF_ERROR(cuda::CudaStatus(cudaDeviceSynchronize(), "waiting before a plan is dropped"));
  kept.erase(oldest);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const Plans>> CudnnAttention::State::PlansFor(const Shape& shape, bool stay) {
  MutexLock lock(&mutex);
  if (!std::exchange(started, true)) handle = MakeHandle();
  SYNCOPATE_RETURN_IF_ERROR(handle.status());
  ++calls;
  // Refusals are cached too: asking cuDNN again would cost the search each time.
  if (const auto found = kept.find(shape); found != kept.end()) {
    found->second.used = calls;
    found->second.stays |= stay;
    return found->second.plans;
  }
  SYNCOPATE_RETURN_IF_ERROR(MakeRoom());
  const auto begin = std::chrono::steady_clock::now();
  Kept made{BuildPlans(shape, *handle), calls, stay};
  ++effort.plans;
  effort.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return kept.emplace(shape, std::move(made)).first->second.plans;
}

absl::Status CudnnAttention::State::Execute(bool forward, bool trains, const AttentionInputs& inputs,
                                            std::unordered_map<int64_t, void*> tensors, const Lend& lend,
                                            cudaStream_t stream) {
  SYNCOPATE_ASSIGN_OR_RETURN(const Shape shape, ShapeFor(inputs, trains));
  const cuda::DeviceScope scope(device);
  SYNCOPATE_ASSIGN_OR_RETURN(const std::shared_ptr<const Plans> plans, PlansFor(shape, /*stay=*/false));
  const Graph& graph = forward ? *plans->forward : *plans->backward;
  const RaggedOffsets ragged = OffsetsFor(shape);
  SYNCOPATE_ASSIGN_OR_RETURN(const int64_t bytes, BorrowedBytes(ragged, graph));
  // Borrows memory from the caller's allocator until the stream has passed this call: attention owns no memory, however
  // long sequences get.
  char* const memory = static_cast<char*>(lend(bytes));
  int32_t* const offsets = reinterpret_cast<int32_t*>(memory);
  const int32_t* const key_starts = inputs.key_starts != nullptr ? inputs.key_starts : inputs.starts;
  SYNCOPATE_RETURN_IF_ERROR(
      cuda::CudaStatus(FillRaggedOffsets(ragged, inputs.starts, key_starts, inputs.sequences, offsets, stream),
                       "filling in where sequences lie"));

  tensors[kQueries] = const_cast<void*>(inputs.queries);
  tensors[kKeys] = const_cast<void*>(inputs.keys);
  tensors[kValues] = const_cast<void*>(inputs.values);
  tensors[kQueryLengths] = ragged.QueryLengths(offsets);
  tensors[kKeyLengths] = ragged.KeyLengths(offsets);
  for (int i = 0; i < RaggedOffsets::kTensors; ++i) tensors[kFirstOffsets + i] = ragged.Offsets(offsets, i);
  MutexLock lock(&mutex);
  // All callers of a device share the handle, which has one stream: so the stream is set and used under one lock.
  if (const cudnnStatus_t status = cudnnSetStream(*handle, stream); status != CUDNN_STATUS_SUCCESS) {
    return Error(absl::StatusCode::kInternal, "CUDNN_ERROR", cudnnGetErrorString(status));
  }
  return FrontendStatus(graph.execute(*handle, tensors, memory + OffsetBytes(ragged)), absl::StatusCode::kInternal);
}

int64_t CudnnAttention::OrderedBytes(int64_t heads, int64_t sequences, int64_t longest) {
  const int64_t length = OrderedLength(longest);
  return 2 * TrainingBatch(sequences) * heads * length * length;
}

CudnnAttention& CudnnAttention::On(int device) {
  static Mutex mutex;
  static auto* const all = new std::map<int, CudnnAttention*>;  // never destroyed: may be used while the process ends
  MutexLock lock(&mutex);
  CudnnAttention*& one = (*all)[device];
  if (one == nullptr) one = new CudnnAttention(device);
  return *one;
}

CudnnAttention::CudnnAttention(int device) : state_(std::make_unique<State>(device)) {}
CudnnAttention::~CudnnAttention() = default;

absl::Status CudnnAttention::Forward(const AttentionInputs& inputs, const AttentionOutputs& outputs, const Lend& lend,
                                     cudaStream_t stream) {
  const bool trains = outputs.stats != nullptr;
  std::unordered_map<int64_t, void*> tensors = {{kAttended, outputs.attended}};
  if (trains) tensors[kStats] = outputs.stats;
  const absl::Status status = state_->Execute(/*forward=*/true, trains, inputs, std::move(tensors), lend, stream);
  if (IsRefusal(status)) {
    MutexLock lock(&state_->mutex);
    // Logged once only: every layer of every step gets the same refusal.
    if (!std::exchange(state_->complained, true)) {
      SYNCOPATE_LOG(kWarning, "attention by libtorch's FlashAttention-2 where cuDNN cannot be used: %s",
                    status.message());
    }
  }
  return status;
}

absl::Status CudnnAttention::Backward(const AttentionInputs& inputs, const AttentionOutputs& outputs,
                                      const AttentionGradients& gradients, const Lend& lend, cudaStream_t stream) {
  return state_->Execute(/*forward=*/false, /*trains=*/true, inputs,
                         {{kAttended, outputs.attended},
                          {kStats, outputs.stats},
                          {kAttendedGradient, const_cast<void*>(gradients.attended)},
                          {kQueryGradient, gradients.queries},
                          {kKeyGradient, gradients.keys},
                          {kValueGradient, gradients.values}},
                         lend, stream);
}

int64_t CudnnAttention::Prepare(const AttentionInputs& most) {
  AttentionInputs whole = most;
  whole.key_starts = nullptr;
  // Rounding raises these to the smallest sizes.
  whole.rows = whole.longest = 1;
  const cuda::DeviceScope scope(state_->device);
  int64_t borrowed = 0;
  const auto prepare = [&](const Shape& shape) {
    const absl::StatusOr<std::shared_ptr<const Plans>> plans = state_->PlansFor(shape, /*stay=*/true);
    if (!plans.ok()) return false;
    const absl::StatusOr<int64_t> bytes = BorrowedBytes(OffsetsFor(shape), *(*plans)->forward);
    borrowed = std::max(borrowed, bytes.value_or(0));
    return bytes.ok();
  };
  // Makes the plans for all rounded sizes from one sequence to most.sequences: a plan made during serving would delay
  // requests by a second.
  for (whole.sequences = 1;; whole.sequences *= 2) {
    absl::StatusOr<Shape> shape = ShapeFor(whole, /*trains=*/false);
    if (!shape.ok() || !prepare(*shape)) return 0;
    const int64_t longest_key = RoundUp(most.longest_key, /*steps=*/1, kLeastLength);
    for (shape->longest_key = kLeastLength; shape->longest_key <= longest_key; shape->longest_key *= 2) {
      if (!prepare(*shape)) return 0;
    }
    if (whole.sequences >= most.sequences) return borrowed;
  }
}

CudnnAttention::Effort CudnnAttention::effort() const {
  MutexLock lock(&state_->mutex);
  return state_->effort;
}

}  // namespace syncopate::model
