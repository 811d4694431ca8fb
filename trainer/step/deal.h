#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "model/model_config.h"

namespace syncopate::trainer {

// What a sequence costs to compute, in operations of a forward pass: its products, and attention, which grows with
// the square of its length. Only the ratio of the two matters.
struct SequenceCost {
  double per_token = 1;
  double per_square = 0;
  double Estimate(int64_t tokens) const {
    const double count = static_cast<double>(tokens);
    return per_token * count + per_square * count * count;
  }
};
SequenceCost ComputeCost(const model::ModelConfig& config);

// Which sequences, by index, are each micro-batch of each rank: [rank][micro-batch][..]. Indices rise inside a
// micro-batch.
using Deal = std::vector<std::vector<std::vector<size_t>>>;

// Deals sequences of these lengths (input tokens) to `ranks` ranks, each of which has as many micro-batches as every
// other, of at most `max_tokens` tokens: as few as the rule below finds, some of them empty if there are not enough
// sequences. Costliest first, each to the micro-batch that has the least to do among those with room; then the n-th
// micro-batch of each rank costs about as much as that of every other, for they wait for each other. Pure: the same on
// every rank. INVALID_ARGUMENT (reason SEQUENCE_TOO_LONG), naming both lengths and the key, for a sequence that is
// longer than a micro-batch.
absl::StatusOr<Deal> DealByCost(const std::vector<int64_t>& lengths, int ranks, int64_t max_tokens,
                                const SequenceCost& cost);

}  // namespace syncopate::trainer
