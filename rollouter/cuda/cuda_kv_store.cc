#include "rollouter/cuda/cuda_kv_store.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>

#include "rollouter/cuda/attention_kernels.h"

namespace syncopate::rollouter {
namespace {

at::Tensor Rows(const KvBatch& batch, at::Device device) {
  const int64_t count = static_cast<int64_t>(batch.rows.size());
  at::Tensor rows = at::empty({2, count}, at::kInt);
  int32_t* values = rows.data_ptr<int32_t>();
  for (int64_t i = 0; i < count; ++i) {
    values[i] = batch.rows[i].table;
    values[count + i] = batch.rows[i].position;
  }
  // One copy to the device per batch, instead of one per layer.
  return rows.to(device);
}

at::Tensor Tables(const KvBatch& batch, at::Device device) {
  size_t longest = 0;
  for (const auto& table : batch.tables) longest = std::max(longest, table.size());
  at::Tensor tables = at::zeros({static_cast<int64_t>(batch.tables.size()), static_cast<int64_t>(longest)}, at::kInt);
  int32_t* values = tables.data_ptr<int32_t>();
  for (size_t i = 0; i < batch.tables.size(); ++i) {
    std::copy(batch.tables[i].begin(), batch.tables[i].end(), values + i * longest);
  }
  return tables.to(device);
}

}  // namespace

CudaKvStore::CudaKvStore(const model::ModelConfig& config, int64_t blocks, int64_t host_blocks,
                         at::TensorOptions options)
    : config_(config),
      options_(options),
      blocks_(blocks),
      swapped_(at::empty({host_blocks, config.num_hidden_layers, 2, kBlockTokens, config.key_value_size()},
                         options.device(at::kCPU).pinned_memory(host_blocks > 0))) {
  Restore();
}

void CudaKvStore::Release() {
  data_ = at::Tensor();
  // libtorch caches freed memory; emptyCache() returns it to the device for other users.
  c10::cuda::CUDACachingAllocator::emptyCache();
}

void CudaKvStore::Restore() {
  if (data_.defined()) return;
  data_ = at::zeros({blocks_ + 1, config_.num_hidden_layers, 2, kBlockTokens, config_.key_value_size()}, options_);
}

void CudaKvStore::SwapOut(absl::Span<const BlockSwap> swaps) {
  for (const BlockSwap& swap : swaps) {
    swapped_.select(0, swap.host_block).copy_(data_.select(0, swap.block), /*non_blocking=*/true);
  }
}

void CudaKvStore::SwapIn(absl::Span<const BlockSwap> swaps) {
  for (const BlockSwap& swap : swaps) {
    data_.select(0, swap.block).copy_(swapped_.select(0, swap.host_block), /*non_blocking=*/true);
  }
}

void CudaKvStore::Copy(absl::Span<const BlockCopy> copies) {
  for (const BlockCopy& copy : copies) data_.select(0, copy.to).copy_(data_.select(0, copy.from));
}

std::unique_ptr<model::Attention> CudaKvStore::MakeAttention(KvBatch batch) {
  return std::make_unique<CudaAttention>(config_, *this, batch);
}

CudaAttention::CudaAttention(const model::ModelConfig& config, const CudaKvStore& store, const KvBatch& batch)
    : config_(config),
      store_(store),
      rows_(Rows(batch, store.data().device())),
      blocks_(Tables(batch, store.data().device())) {}

at::Tensor CudaAttention::Attend(int64_t layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const at::Tensor& data = store_.data();
  const c10::cuda::CUDAGuard guard(data.device());
  // The kernels run on the same stream as libtorch's operators, so they need no event between them.
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(data.device().index());
  const CacheElement element = data.scalar_type() == at::kBFloat16 ? CacheElement::kBFloat16 : CacheElement::kFloat32;
  const RowTable table{blocks_.data_ptr<int32_t>(),
                       blocks_.size(1),
                       rows_.data_ptr<int32_t>(),
                       rows_.data_ptr<int32_t>() + rows_.size(1),
                       kBlockTokens,
                       rows_.size(1)};
  char* keys = static_cast<char*>(data.data_ptr()) + layer * data.stride(1) * data.element_size();
  const CacheLayer place{keys, keys + data.stride(2) * data.element_size(), data.stride(0), data.stride(3)};
  const HeadShape shape{static_cast<int32_t>(config_.num_attention_heads),
                        static_cast<int32_t>(config_.num_key_value_heads), static_cast<int32_t>(config_.head_dim)};
  const at::Tensor queries = q.to(data.scalar_type()).contiguous();
  const at::Tensor new_keys = k.to(data.scalar_type()).contiguous();
  const at::Tensor new_values = v.to(data.scalar_type()).contiguous();
  at::Tensor out = at::empty({q.size(0), config_.query_size()}, queries.options());
  C10_CUDA_CHECK(StoreRows(element, table, place, new_keys.data_ptr(), new_values.data_ptr(), stream));
  C10_CUDA_CHECK(AttendRows(element, table, place, shape, queries.data_ptr(), out.data_ptr(), stream));
  return out.to(q.scalar_type());
}

}  // namespace syncopate::rollouter
