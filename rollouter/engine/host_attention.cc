#include "rollouter/engine/host_attention.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace syncopate::rollouter {
namespace {

// Eight partial sums in a fixed order: the compiler turns them into vector lanes, and the result is the same on every
// machine and for every caller.
float Dot(const float* a, const float* b, int64_t n) {
  float lanes[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int64_t lane = 0; lane < 8; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  }
  for (; i < n; ++i) lanes[i % 8] += a[i] * b[i];
  return ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) + ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
}

void AddScaled(float scale, const float* x, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] += scale * x[i];
}

// Softmax in place over scores[0, n).
void Softmax(float* scores, int64_t n) {
  const float highest = *std::max_element(scores, scores + n);
  float total = 0;
  for (int64_t i = 0; i < n; ++i) total += scores[i] = std::exp(scores[i] - highest);
  const float inverse = 1.0f / total;
  for (int64_t i = 0; i < n; ++i) scores[i] *= inverse;
}

}  // namespace

HostAttention::HostAttention(const model::ModelConfig& config, HostKvStore& store, KvBatch batch)
    : config_(config), store_(store), batch_(std::move(batch)) {
  int32_t longest = 0;
  for (const KvBatch::Row& row : batch_.rows) {
    longest = std::max(longest, row.position + 1);
    store_.Reserve(batch_.tables[row.table][row.position / kBlockTokens]);
  }
  scores_.resize(static_cast<size_t>(longest));
}

at::Tensor HostAttention::Attend(int64_t layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  Store(layer, k.to(at::kFloat).contiguous(), v.to(at::kFloat).contiguous());
  at::Tensor queries = q.to(at::kFloat).contiguous();
  at::Tensor out = at::zeros({q.size(0), config_.query_size()}, queries.options());
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
  const int64_t head_dim = config_.head_dim, stride = config_.key_value_size(), length = row.position + 1;
  const int64_t queries_per_kv = config_.num_attention_heads / config_.num_key_value_heads;
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  keys_.clear();
  for (int64_t begin = 0; begin < length; begin += kBlockTokens) {
    keys_.push_back(store_.Keys(layer, batch_.tables[row.table][begin / kBlockTokens]));
  }
  for (int64_t head = 0; head < config_.num_attention_heads; ++head) {
    const int64_t offset = head / queries_per_kv * head_dim, values = offset + store_.value_offset();
    const float* query = q + head * head_dim;
    float* result = out + head * head_dim;
    for (int64_t begin = 0; begin < length; begin += kBlockTokens) {
      const float* keys = keys_[begin / kBlockTokens] + offset;
      float* scores = scores_.data() + begin;
      const int64_t count = std::min<int64_t>(kBlockTokens, length - begin);
      for (int64_t t = 0; t < count; ++t) scores[t] = scale * Dot(query, keys + t * stride, head_dim);
    }
    Softmax(scores_.data(), length);
    for (int64_t begin = 0; begin < length; begin += kBlockTokens) {
      const float* block = keys_[begin / kBlockTokens] + values;
      const float* scores = scores_.data() + begin;
      const int64_t count = std::min<int64_t>(kBlockTokens, length - begin);
      for (int64_t t = 0; t < count; ++t) AddScaled(scores[t], block + t * stride, result, head_dim);
    }
  }
}

}  // namespace syncopate::rollouter
