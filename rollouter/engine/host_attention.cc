#include "rollouter/engine/host_attention.h"

#include <algorithm>
#include <utility>

#include "model/host_rows.h"

namespace syncopate::rollouter {

HostAttention::HostAttention(const model::ModelConfig& config, HostKvStore& store, KvBatch batch)
    : config_(config), store_(store), batch_(std::move(batch)) {
  int32_t longest = 0;
  for (const KvBatch::Row& row : batch_.rows) {
    longest = std::max(longest, row.position + 1);
    // The memory is reserved once per batch, not in every layer.
    store_.Reserve(batch_.tables[row.table][row.position / kBlockTokens]);
  }
  scores_.resize(static_cast<size_t>(longest));
}

at::Tensor HostAttention::Attend(int64_t layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  // All keys are stored first, because a row of a chunk attends to earlier rows of the same batch.
  Store(layer, k.to(at::kFloat).contiguous(), v.to(at::kFloat).contiguous());
  at::Tensor queries = q.to(at::kFloat).contiguous();
  at::Tensor out = at::empty({q.size(0), config_.query_size()}, queries.options());
  const float* query = queries.data_ptr<float>();
  float* result = out.data_ptr<float>();
  for (const KvBatch::Row& row : batch_.rows) {
    AttendRow(layer, row, query, result);
    query += config_.query_size();
    result += config_.query_size();
  }
  return out.to(q.scalar_type());
}

void HostAttention::Store(int64_t layer, const at::Tensor& k, const at::Tensor& v) {
  const int64_t stride = config_.key_value_size();
  const float* keys = k.data_ptr<float>();
  const float* values = v.data_ptr<float>();
  for (const KvBatch::Row& row : batch_.rows) {
    const BlockIndex block = batch_.tables[row.table][row.position / kBlockTokens];
    float* to = store_.Keys(layer, block) + row.position % kBlockTokens * stride;
    std::copy_n(keys, stride, to);
    std::copy_n(values, stride, to + store_.value_offset());
    keys += stride;
    values += stride;
  }
}

void HostAttention::AttendRow(int64_t layer, const KvBatch::Row& row, const float* q, float* out) {
  const model::HostSequence sequence = {.length = row.position + 1,
                                        .heads = config_.num_attention_heads,
                                        .kv_heads = config_.num_key_value_heads,
                                        .head_dim = config_.head_dim,
                                        .window = config_.window(layer)};
  blocks_.clear();
  for (int64_t begin = 0; begin < sequence.length; begin += kBlockTokens) {
    blocks_.push_back(store_.Keys(layer, batch_.tables[row.table][begin / kBlockTokens]));
  }
  model::FastestHostRows().AttendBlocks(sequence, q, blocks_.data(), kBlockTokens, store_.value_offset(), out,
                                        scores_.data());
}

}  // namespace syncopate::rollouter
