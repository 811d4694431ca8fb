#include "rollouter/cuda/packed_attention.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cmath>

#include "cuda/cuda_status.h"
#include "model/cuda/cudnn_attention.h"

namespace syncopate::rollouter {
namespace {

// A view; the memory stays its owner's.
at::Tensor View(const void* data, at::IntArrayRef shape, at::ScalarType type, at::Device device) {
  return at::for_blob(const_cast<void*>(data), shape)
      .options(at::TensorOptions(type).device(device))
      .target_device(device)
      .make_tensor();
}

model::AttentionInputs GetShape(const HeadCounts& heads) {
  return {.heads = heads.heads,
          .kv_heads = heads.kv_heads,
          .head_dim = heads.head_dim,
          .query_stride = int64_t{heads.heads} * heads.head_dim,
          .key_stride = int64_t{heads.kv_heads} * heads.head_dim};
}

absl::Status AttendPackedByCudnn(const PackedAttention& call, const HeadCounts& heads, int device,
                                 const cuda::DeviceBuffer& scratch, cudaStream_t stream) {
  at::Tensor lent;
  const auto lend = [&](int64_t bytes) -> void* {
    if (bytes <= scratch.bytes()) return scratch.data();
    const c10::InferenceMode inference;
    const at::Device place(at::kCUDA, static_cast<c10::DeviceIndex>(device));
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromExternal(stream, place.index()));
    lent = at::empty({bytes}, at::TensorOptions(at::kByte).device(place));
    return lent.mutable_data_ptr();
  };
  model::AttentionInputs inputs = GetShape(heads);
  inputs.sequences = call.sequences;
  inputs.starts = call.query_starts;
  inputs.rows = call.query_count;
  inputs.longest = call.longest_query;
  inputs.queries = call.queries;
  inputs.keys = call.keys;
  inputs.values = call.values;
  // Else all prompts are whole: none goes on from keys of an earlier pass or of a shared prefix.
  if (call.key_count != call.query_count) {
    inputs.key_starts = call.key_starts;
    inputs.key_rows = call.key_count;
    inputs.longest_key = call.longest_key;
  }
  return model::CudnnAttention::On(device).Forward(inputs, {.attended = call.out}, lend, stream);
}

}  // namespace

int64_t PreparePacked(const HeadCounts& heads, int device, int64_t sequences, int64_t longest) {
  model::AttentionInputs most = GetShape(heads);
  most.sequences = static_cast<int32_t>(sequences);
  most.longest_key = longest;
  return model::CudnnAttention::On(device).Prepare(most);
}

absl::Status AttendPacked(const PackedAttention& call, const HeadCounts& heads, int device,
                          const cuda::DeviceBuffer& scratch, cudaStream_t stream) {
  const absl::Status status = AttendPackedByCudnn(call, heads, device, scratch, stream);
  return model::CudnnAttention::IsRefusal(status) ? AttendPackedByFlash(call, heads, device, stream) : status;
}

absl::Status AttendPackedByFlash(const PackedAttention& call, const HeadCounts& heads, int device,
                                 cudaStream_t stream) {
  const c10::InferenceMode inference;
  const at::Device place(at::kCUDA, static_cast<c10::DeviceIndex>(device));
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromExternal(stream, place.index()));
  const at::Tensor queries = View(call.queries, {call.query_count, heads.heads, heads.head_dim}, at::kBFloat16, place);
  const at::Tensor keys = View(call.keys, {call.key_count, heads.kv_heads, heads.head_dim}, at::kBFloat16, place);
  const at::Tensor values = View(call.values, {call.key_count, heads.kv_heads, heads.head_dim}, at::kBFloat16, place);
  const at::Tensor query_starts = View(call.query_starts, {call.sequences + 1}, at::kInt, place);
  const at::Tensor key_starts = View(call.key_starts, {call.sequences + 1}, at::kInt, place);
  // With fewer queries than keys its causal mask ends with the last key: the queries are the newest tokens.
  const at::Tensor out = std::get<0>(at::_flash_attention_forward(
      queries, keys, values, query_starts, key_starts, call.longest_query, call.longest_key, /*dropout_p=*/0,
      /*is_causal=*/true, /*return_debug_mask=*/false, 1 / std::sqrt(static_cast<double>(heads.head_dim))));
  return cuda::CudaStatus(
      cudaMemcpyAsync(call.out, out.const_data_ptr(), out.nbytes(), cudaMemcpyDeviceToDevice, stream),
      "copying what was attended");
}

}  // namespace syncopate::rollouter
