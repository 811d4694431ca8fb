#pragma once

#include "absl/status/statusor.h"
#include "bench/decode/random_model.h"

namespace syncopate::bench {

// Seconds of attention over all layers in a step of `rows` sequences of `context` tokens; the median of `repeats`.
absl::StatusOr<double> TimeAttention(const NamedShape& named, const RandomModel& model, int32_t rows, int32_t context,
                                     int repeats);

// The block tables of the sequences, drawn from all blocks of the storage: [rows, blocks of `context` tokens].
std::vector<int32_t> ShuffledTables(const rollouter::BlockStorage& storage, int32_t rows, int32_t context);

}  // namespace syncopate::bench
