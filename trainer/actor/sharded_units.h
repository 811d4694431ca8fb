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

// Memory for units that ranks hold in shards: two buffers that layers take turns in, so that one can be moved while its
// neighbour is computed, one for the embeddings and one for the last norm and the head, each with room for the shards of
// all ranks, padding included.
class UnitBuffers {
 public:
  // Units before `first_unit` have no memory.
  UnitBuffers(const model::ModelConfig& config, const Manifest& manifest, const FlatShards& shards,
              const at::TensorOptions& options, int first_unit = FlatShards::kEmbeddings);

  // [world * shard] of this unit. Every other layer has the same.
  at::Tensor ForUnit(int unit) const { return memory_[static_cast<size_t>(unit)]; }
  const model::TransformerWeights& views() const { return views_; }

 private:
  std::vector<at::Tensor> memory_;  // of each unit
  model::TransformerWeights views_;
};

// Weights, gathered unit by unit from the shards of all ranks, on a GPU beside what is computed. A unit is gathered if its
// buffer holds another one, or weights from before Expire(): so the embeddings and the head are once an update, and the
// forward of the last two layers leaves them there for their backward.
class GatheredWeights final : public UnitAccess {
 public:
  // `local` is this rank's arena (FlatShards), which must outlive this, as must `shards` and `ranks`.
  GatheredWeights(const model::ModelConfig& config, const Manifest& manifest, const FlatShards& shards,
                  const at::Tensor& local, Communicator& ranks);

  absl::Status Acquire(int unit) override;
  absl::Status Release(int) override { return absl::OkStatus(); }
  absl::Status Expect(int unit) override;
  const model::TransformerWeights& views() const override { return buffers_.views(); }
  // All of an acquired unit, flat: [its elements].
  at::Tensor numbers(int unit) const { return buffers_.ForUnit(unit).narrow(0, 0, shards_.unit(unit).count); }
  // The weights have changed.
  void Expire() { held_.assign(held_.size(), false); }

 private:
  const FlatShards& shards_;
  const at::Tensor local_;
  Communicator& ranks_;
  const UnitBuffers buffers_;
  SideStream side_;
  std::vector<bool> held_;                  // of each unit: its buffer has it, or will
  std::vector<SideStream::Mark> gathered_;  // of each unit that is held: when its buffer has it
};

// Gradients. Those of a layer are summed over ranks when it is released, and added to this rank's shard, on a GPU beside
// what is computed; those of the units of the vocabulary, which several of a step's operations add to, once, by Flush().
class ReducedGradients final : public UnitAccess {
 public:
  // Arguments as for GatheredWeights; `local` is float32, of the trained part of this rank's arena. `reduce`: kFloat, or kBFloat16, to which each rank's part of
  // a sum is rounded and the sum too; what is added to the shard is float32.
  ReducedGradients(const model::ModelConfig& config, const Manifest& manifest, const FlatShards& shards,
                   const at::Tensor& local, Communicator& ranks, at::ScalarType reduce = at::kFloat);

  absl::Status Acquire(int unit) override;
  absl::Status Release(int unit) override;
  absl::Status Expect(int) override { return absl::OkStatus(); }
  const model::TransformerWeights& views() const override { return buffers_.views(); }
  // Before the first micro-batch of an update: all gradients are 0.
  void Zero();
  // After its last one, on all ranks: this rank's arena has the sums of all.
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
  at::Tensor rounded_;  // [world * largest shard] kBFloat16, what is summed; undefined where that is float32
  SideStream side_;
  std::vector<SideStream::Mark> added_;  // of each unit: when what its buffer had last is in the arena
  std::vector<bool> empty_;              // of each unit: its shard has nothing of this update yet
};

// A unit of the arenas `local` of all ranks, which all call it: [world * shard], where the arenas are.
absl::StatusOr<at::Tensor> GatherUnit(const FlatShards& shards, int unit, const at::Tensor& local, Communicator& ranks);
// The shards of all ranks, which all call it with one of the same size: [world * shard], where the shards are.
absl::StatusOr<at::Tensor> GatherShards(const at::Tensor& mine, Communicator& ranks);

}  // namespace syncopate::trainer
