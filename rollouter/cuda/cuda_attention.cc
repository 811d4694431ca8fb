#include "rollouter/cuda/cuda_attention.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "rollouter/cuda/attention_kernels.h"

namespace syncopate::rollouter {
namespace {

at::Tensor TableOf(const std::vector<RowPlace>& rows, at::Device device) {
  const int64_t count = static_cast<int64_t>(rows.size());
  at::Tensor table = at::empty({2, count}, at::kLong);
  int64_t* slots = table.data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    slots[i] = rows[i].slot;
    slots[count + i] = rows[i].position;
  }
  return table.to(device);
}

}  // namespace

CudaAttention::CudaAttention(const model::ModelConfig& config, KvCache& cache, const std::vector<RowPlace>& rows)
    : config_(config), cache_(cache), table_(TableOf(rows, cache.data().device())) {}

at::Tensor CudaAttention::Attend(int64_t layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const at::Tensor& cache = cache_.data();
  const c10::cuda::CUDAGuard guard(cache.device());
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(cache.device().index());
  const CacheElement element = cache.scalar_type() == at::kBFloat16 ? CacheElement::kBFloat16 : CacheElement::kFloat32;
  const RowTable table{table_.data_ptr<int64_t>(), table_.data_ptr<int64_t>() + table_.size(1), table_.size(1)};
  char* keys = static_cast<char*>(cache.data_ptr()) + layer * cache_.layer_stride() * cache.element_size();
  const CacheLayer place{keys, keys + cache_.value_offset() * cache.element_size(), cache_.slot_stride(),
                         cache_.position_stride()};
  const HeadShape shape{static_cast<int32_t>(config_.num_attention_heads),
                        static_cast<int32_t>(config_.num_key_value_heads), static_cast<int32_t>(config_.head_dim)};
  const at::Tensor queries = q.to(cache.scalar_type()).contiguous();
  const at::Tensor new_keys = k.to(cache.scalar_type()).contiguous();
  const at::Tensor new_values = v.to(cache.scalar_type()).contiguous();
  at::Tensor out = at::empty({q.size(0), config_.query_size()}, queries.options());
  C10_CUDA_CHECK(StoreRows(element, table, place, new_keys.data_ptr(), new_values.data_ptr(), stream));
  C10_CUDA_CHECK(AttendRows(element, table, place, shape, queries.data_ptr(), out.data_ptr(), stream));
  return out.to(q.scalar_type());
}

}  // namespace syncopate::rollouter
