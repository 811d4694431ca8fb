#pragma once

#include "absl/status/statusor.h"
#include "bench/decode/random_model.h"

namespace syncopate::bench {

// Seconds of parts of a step with `rows` rows, each part alone; medians of `repeats`.
struct PartTimes {
  double layers = 0;  // the matrix products of all layers
  double head = 0;    // the matrix product of the head
  double sampler = 0;
};
absl::StatusOr<PartTimes> TimeProducts(const NamedShape& named, const RandomModel& model, int32_t rows,
                                       bool float32_logits, int repeats);

}  // namespace syncopate::bench
