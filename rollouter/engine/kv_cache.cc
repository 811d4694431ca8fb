#include "rollouter/engine/kv_cache.h"

#include <cstring>

namespace syncopate::rollouter {

KvCache::KvCache(const model::ModelConfig& config, int64_t slots, at::TensorOptions options)
    : slots_(slots),
      data_(at::zeros({config.num_hidden_layers, 2, slots + 1, config.max_position_embeddings, config.key_value_size()},
                      options)) {}

int64_t KvCache::BytesFor(const model::ModelConfig& config, int64_t slots, int64_t element_bytes) {
  return config.num_hidden_layers * 2 * (slots + 1) * config.max_position_embeddings * config.key_value_size() *
         element_bytes;
}

void KvCache::Fork(int64_t from, absl::Span<const int64_t> to, int64_t length) {
  if (data_.is_cpu()) return ForkOnHost(from, to, length);
  const at::Tensor prefix = data_.select(2, from).narrow(2, 0, length);
  for (int64_t slot : to) data_.select(2, slot).narrow(2, 0, length).copy_(prefix);
}

void KvCache::ForkOnHost(int64_t from, absl::Span<const int64_t> to, int64_t length) {
  const int64_t element = static_cast<int64_t>(data_.element_size());
  const size_t bytes = static_cast<size_t>(length * position_stride() * element);
  char* planes = static_cast<char*>(data_.data_ptr());  // keys or values of one layer
  for (int64_t plane = 0; plane < 2 * data_.size(0); ++plane, planes += value_offset() * element) {
    for (int64_t slot : to) {
      std::memcpy(planes + slot * slot_stride() * element, planes + from * slot_stride() * element, bytes);
    }
  }
}

}  // namespace syncopate::rollouter
