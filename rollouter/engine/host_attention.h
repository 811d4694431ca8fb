#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "model/model_config.h"
#include "model/transformer.h"
#include "rollouter/engine/host_kv_store.h"

namespace syncopate::rollouter {

// Attention of one batch over a HostKvStore. Rows of one sequence may come together (prefill, whole or in chunks) or
// one at a time (decode). The arithmetic of a row is the same loop over its own positions, in order, so its bits depend
// on nothing else.
class HostAttention final : public model::Attention {
 public:
  // See KvStore::MakeAttention.
  HostAttention(const model::ModelConfig& config, HostKvStore& store, KvBatch batch);

  at::Tensor Attend(int64_t layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) override;

 private:
  void Store(int64_t layer, const at::Tensor& k, const at::Tensor& v);
  void AttendRow(int64_t layer, const KvBatch::Row& row, const float* q, float* out);

  const model::ModelConfig& config_;
  HostKvStore& store_;
  const KvBatch batch_;
  std::vector<float> scores_;
  std::vector<const float*> blocks_;  // the blocks of the current row
};

}  // namespace syncopate::rollouter
