#include "rollouter/engine/kv_cache.h"

#include <algorithm>
#include <cmath>
#include <cstring>
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

KvCache::KvCache(const model::ModelConfig& config, int64_t slots)
    : layers_(config.num_hidden_layers),
      slots_(slots),
      position_stride_(config.key_value_size()),
      slot_stride_(config.max_position_embeddings * config.key_value_size()),
      cache_(at::zeros({layers_ * 2 * (slots + 1) * slot_stride_}, at::kFloat)),
      data_(cache_.data_ptr<float>()) {}

void KvCache::Fork(int64_t from, int64_t to, int64_t length) {
  const size_t bytes = static_cast<size_t>(length * position_stride_) * sizeof(float);
  for (int64_t layer = 0; layer < layers_; ++layer) {
    std::memcpy(Keys(layer, to), Keys(layer, from), bytes);
    std::memcpy(Values(layer, to), Values(layer, from), bytes);
  }
}

CachedAttention::CachedAttention(const model::ModelConfig& config, KvCache& cache, std::vector<RowPlace> rows)
    : config_(config), cache_(cache), rows_(std::move(rows)), scores_(config.max_position_embeddings) {}

at::Tensor CachedAttention::Attend(int64_t layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  Store(layer, k.contiguous(), v.contiguous());
  at::Tensor queries = q.contiguous();
  at::Tensor out = at::zeros({q.size(0), config_.query_size()}, q.options());
  const float* query = queries.data_ptr<float>();
  float* result = out.data_ptr<float>();
  for (const RowPlace& row : rows_) {
    AttendRow(layer, row, query, result);
    query += config_.query_size();
    result += config_.query_size();
  }
  return out;
}

void CachedAttention::Store(int64_t layer, const at::Tensor& k, const at::Tensor& v) {
  const int64_t stride = cache_.position_stride();
  const float* keys = k.data_ptr<float>();
  const float* values = v.data_ptr<float>();
  for (size_t i = 0; i < rows_.size(); ++i) {
    const int64_t offset = rows_[i].position * stride;
    std::copy_n(keys + i * stride, stride, cache_.Keys(layer, rows_[i].slot) + offset);
    std::copy_n(values + i * stride, stride, cache_.Values(layer, rows_[i].slot) + offset);
  }
}

void CachedAttention::AttendRow(int64_t layer, const RowPlace& row, const float* q, float* out) {
  const int64_t head_dim = config_.head_dim, stride = cache_.position_stride(), length = row.position + 1;
  const int64_t queries_per_kv = config_.num_attention_heads / config_.num_key_value_heads;
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  for (int64_t head = 0; head < config_.num_attention_heads; ++head) {
    const int64_t kv_offset = head / queries_per_kv * head_dim;
    const float* keys = cache_.Keys(layer, row.slot) + kv_offset;
    const float* values = cache_.Values(layer, row.slot) + kv_offset;
    for (int64_t t = 0; t < length; ++t) scores_[t] = scale * Dot(q + head * head_dim, keys + t * stride, head_dim);
    Softmax(scores_.data(), length);
    for (int64_t t = 0; t < length; ++t) AddScaled(scores_[t], values + t * stride, out + head * head_dim, head_dim);
  }
}

}  // namespace syncopate::rollouter
