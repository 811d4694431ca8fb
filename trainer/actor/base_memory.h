#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "base/manifest.h"

namespace syncopate::trainer {

// Memory in which a policy has its base of adapters, in place of memory of its own: a send slot's, so that what forward and
// backward read is also what receivers map (WeightStager::LendBase). It stays on the device when the policy's state leaves.
// For a policy of one rank that computes in bfloat16.
struct BaseMemory {
  // Says where each tensor of the base lies; of the policy's tensors, in their order, those of the base in bfloat16. Rows
  // that it leaves free (TensorSpec::spare_rows) are not the policy's.
  Manifest layout;
  // Allocates layout.adapters_begin() bytes of zeros on the policy's device, once the policy is known to fit. The policy
  // keeps them as long as it lives.
  std::function<absl::StatusOr<std::shared_ptr<char>>()> allocate;
};

// Whether a policy of the float32 manifest `policy` can have its base laid out so: linears that it multiplies with at once,
// because they lie side by side, must do so there, too. Pure.
bool CanHoldBase(const Manifest& policy, const Manifest& layout);

}  // namespace syncopate::trainer
