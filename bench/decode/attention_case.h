#pragma once

#include "absl/status/statusor.h"
#include "bench/decode/random_model.h"

namespace syncopate::bench {

// Seconds of attention over all layers of a step of `rows` sequences of `context` tokens; median of `repeats`.
absl::StatusOr<double> TimeAttention(const NamedShape& named, const RandomModel& model, int32_t rows, int32_t context,
                                     int repeats);

// The sequences' blocks, drawn from all of the storage's: [rows, blocks of `context` tokens].
std::vector<int32_t> ShuffledTables(const rollouter::BlockStorage& storage, int32_t rows, int32_t context);

}  // namespace syncopate::bench
