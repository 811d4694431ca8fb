#pragma once

#include "base/status.h"
#include "model/transformer.h"
#include "trainer/actor/flat_shards.h"

namespace syncopate::trainer {

// Gives a model's tensors, or their gradients, to a computation that goes unit by unit (FlatShards::Unit). From Acquire
// to Release of a unit its tensors in views() have memory: weights are the current ones, gradients are added to what is
// there. At most one layer is acquired at a time, and its neighbours next. With several ranks all ranks must make these
// calls, in the same order; errors are those of Communicator.
class UnitAccess {
 public:
  virtual ~UnitAccess() = default;
  virtual absl::Status Acquire(int unit) = 0;
  virtual absl::Status Release(int unit) = 0;
  // Call while a unit is acquired: says that `unit` is the next one, so that it can be fetched during the computation.
  virtual absl::Status Expect(int unit) = 0;
  virtual const model::TransformerWeights& views() const = 0;
};

// Implements UnitAccess for an arena that one rank has completely: every tensor always has memory.
class WholeUnits final : public UnitAccess {
 public:
  explicit WholeUnits(model::TransformerWeights views) : views_(std::move(views)) {}
  absl::Status Acquire(int) override { return absl::OkStatus(); }
  absl::Status Release(int) override { return absl::OkStatus(); }
  absl::Status Expect(int) override { return absl::OkStatus(); }
  const model::TransformerWeights& views() const override { return views_; }

 private:
  const model::TransformerWeights views_;
};

}  // namespace syncopate::trainer
