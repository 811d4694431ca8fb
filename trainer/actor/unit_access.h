#pragma once

#include "base/status.h"
#include "model/transformer.h"
#include "trainer/actor/flat_shards.h"

namespace syncopate::trainer {

// The tensors of a model, or their gradients, to whoever computes unit after unit (FlatShards::Unit). From Acquire to
// Release of a unit its tensors in views() are there: of weights they hold the current ones, to gradients it is added.
// At most one layer is acquired at a time, and its neighbours next. With several ranks these are calls that all ranks
// make, in the same order; errors are those of Communicator.
class UnitAccess {
 public:
  virtual ~UnitAccess() = default;
  virtual absl::Status Acquire(int unit) = 0;
  virtual absl::Status Release(int unit) = 0;
  // While a unit is acquired: `unit` is the next one, and may be fetched while that one is computed.
  virtual absl::Status Expect(int unit) = 0;
  virtual const model::TransformerWeights& views() const = 0;
};

// Of an arena that one rank holds whole: everything is always there.
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
