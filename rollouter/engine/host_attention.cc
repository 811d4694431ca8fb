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

HostAttention::HostAttention(const model::ModelConfig& config, KvCache& cache, std::vector<RowPlace> rows)
    : config_(config),
      cache_(cache),
      data_(cache.data().data_ptr<float>()),
      rows_(std::move(rows)),
      scores_(config.max_position_embeddings) {}

at::Tensor HostAttention::Attend(int64_t layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  Store(layer, k.to(at::kFloat).contiguous(), v.to(at::kFloat).contiguous());
  at::Tensor queries = q.to(at::kFloat).contiguous();
  at::Tensor out = at::zeros({q.size(0), config_.query_size()}, queries.options());
  const float* query = queries.data_ptr<float>();
  float* result = out.data_ptr<float>();
  for (const RowPlace& row : rows_) {
    AttendRow(layer, row, query, result);
    query += config_.query_size();
    result += config_.query_size();
  }
  return out.to(q.scalar_type());
}

float* HostAttention::Keys(int64_t layer, int64_t slot) {
  return data_ + layer * cache_.layer_stride() + slot * cache_.slot_stride();
}

void HostAttention::Store(int64_t layer, const at::Tensor& k, const at::Tensor& v) {
  const int64_t stride = cache_.position_stride();
  const float* keys = k.data_ptr<float>();
  const float* values = v.data_ptr<float>();
  for (size_t i = 0; i < rows_.size(); ++i) {
    float* to = Keys(layer, rows_[i].slot) + rows_[i].position * stride;
    std::copy_n(keys + i * stride, stride, to);
    std::copy_n(values + i * stride, stride, to + cache_.value_offset());
  }
}

void HostAttention::AttendRow(int64_t layer, const RowPlace& row, const float* q, float* out) {
  const int64_t head_dim = config_.head_dim, stride = cache_.position_stride(), length = row.position + 1;
  const int64_t queries_per_kv = config_.num_attention_heads / config_.num_key_value_heads;
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  for (int64_t head = 0; head < config_.num_attention_heads; ++head) {
    const float* keys = Keys(layer, row.slot) + head / queries_per_kv * head_dim;
    const float* values = keys + cache_.value_offset();
    for (int64_t t = 0; t < length; ++t) scores_[t] = scale * Dot(q + head * head_dim, keys + t * stride, head_dim);
    Softmax(scores_.data(), length);
    for (int64_t t = 0; t < length; ++t) AddScaled(scores_[t], values + t * stride, out + head * head_dim, head_dim);
  }
}

}  // namespace syncopate::rollouter
