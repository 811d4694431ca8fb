#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "base/manifest.h"
#include "model/model_config.h"
#include "ranks/communicator.h"
#include "trainer/actor/flat_shards.h"
#include "trainer/actor/side_stream.h"
#include "trainer/actor/unit_access.h"

namespace syncopate::trainer {

// Buffers for whole units of a model whose shards are spread over ranks. Layers take turns in two buffers, so that one
// layer can be gathered while its neighbour computes; the embeddings have a third, the last norm and the head a fourth.
// Each has room for the shards of all ranks, padding included.
class UnitBuffers {
 public:
  // Units before `first_unit` have no memory.
  UnitBuffers(const model::ModelConfig& config, const Manifest& manifest, const FlatShards& shards,
              const at::TensorOptions& options, int first_unit = FlatShards::kEmbeddings);

  // The buffer of this unit, [world * shard]. Every second layer has the same one.
  at::Tensor ForUnit(int unit) const { return memory_[static_cast<size_t>(unit)]; }
  const model::TransformerWeights& views() const { return views_; }

 private:
  std::vector<at::Tensor> memory_;  // of each unit
  model::TransformerWeights views_;
};

// Gathers weights unit by unit from the shards of all ranks; on a GPU while other work computes. A unit is gathered if
// its buffer contains another unit, or weights from before Expire(). So the embeddings and the head are gathered once
// per update, and the last two layers of forward are still there for their backward.
class GatheredWeights final : public UnitAccess {
 public:
  // `local` is this rank's arena (FlatShards). It, `shards` and `ranks` must outlive this object.
  GatheredWeights(const model::ModelConfig& config, const Manifest& manifest, const FlatShards& shards,
                  const at::Tensor& local, Communicator& ranks);

  absl::Status Acquire(int unit) override;
  absl::Status Release(int) override { return absl::OkStatus(); }
  absl::Status Expect(int unit) override;
  const model::TransformerWeights& views() const override { return buffers_.views(); }
  // The elements of an acquired unit, flat: [shards.unit(unit).count].
  at::Tensor numbers(int unit) const { return buffers_.ForUnit(unit).narrow(0, 0, shards_.unit(unit).count); }
  // Call after the weights have changed: every unit is gathered again before its next use.
  void Expire() { in_buffer_.assign(in_buffer_.size(), false); }

 private:
  const FlatShards& shards_;
  const at::Tensor local_;
  Communicator& ranks_;
  const UnitBuffers buffers_;
  SideStream side_;
  std::vector<bool> in_buffer_;             // by unit: its buffer contains it, or will
  std::vector<SideStream::Mark> gathered_;  // by unit: the point from which its buffer contains it
};

// Sums gradients over ranks and adds them to this rank's shard; on a GPU while other work computes. A layer's gradients
// are summed when the layer is released. Those of the embeddings and the head, to which several operations of a step
// add, are summed once, by Flush().
class ReducedGradients final : public UnitAccess {
 public:
  // Arguments as for GatheredWeights; `local` is the trained part of this rank's arena, float32. `reduce`: kFloat, or
  // kBFloat16, which rounds each rank's summand and the sum. The shard that the sum is added to is float32 in both
  // cases.
  ReducedGradients(const model::ModelConfig& config, const Manifest& manifest, const FlatShards& shards,
                   const at::Tensor& local, Communicator& ranks, at::ScalarType reduce = at::kFloat);

  absl::Status Acquire(int unit) override;
  absl::Status Release(int unit) override;
  absl::Status Expect(int) override { return absl::OkStatus(); }
  const model::TransformerWeights& views() const override { return buffers_.views(); }
  // Sets all gradients to 0. Call before the first micro-batch of an update.
  void Zero();
  // Completes the sums in this rank's arena. Call on all ranks after the last micro-batch of an update.
  absl::Status Flush();

 private:
  bool is_trained(int unit) const { return unit >= shards_.first_trained_unit(); }
  bool is_layer(int unit) const {
    return is_trained(unit) && unit != FlatShards::kEmbeddings && unit < shards_.output_unit();
  }
  // Units whose gradients are summed over all micro-batches before they are reduced, in the order of that.
  std::vector<int> GetLateUnits() const;
  at::Tensor GetShard(int unit) const;  // of local_
  absl::Status Reduce(int unit);
  absl::Status ReduceInto(int unit, const at::Tensor& mine, bool is_first);

  const FlatShards& shards_;
  at::Tensor local_;
  Communicator& ranks_;
  const UnitBuffers buffers_;
  at::Tensor reduced_;  // [largest shard], in the dtype of sums
  at::Tensor rounded_;  // [world * largest shard] kBFloat16, the summands; undefined where they are float32
  SideStream side_;
  std::vector<SideStream::Mark> added_;  // by unit: the point from which the arena contains its buffer's last gradients
  std::vector<bool> empty_;              // by unit: this update has added nothing to its shard yet
};

// Gathers one unit from the arenas `local` of all ranks: [world * shard], on the device of `local`. All ranks must call
// it.
absl::StatusOr<at::Tensor> GatherUnit(const FlatShards& shards, int unit, const at::Tensor& local, Communicator& ranks);
// The shards of all ranks, which all call it with one of the same size: [world * shard], where the shards are.
absl::StatusOr<at::Tensor> GatherShards(const at::Tensor& mine, Communicator& ranks);

}  // namespace syncopate::trainer
