#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "base/trajectory.h"
#include "model/model_config.h"

namespace syncopate::bench {

// Lengths whose sum is `tokens`: all `longest`, or log-normal between a 16th of it and it; the last one takes the rest.
std::vector<int64_t> DrawLengths(int64_t tokens, int64_t longest, bool ragged, std::mt19937_64& random);

// A batch of groups with one answer for each length; a length is the size of the answer's input. A prompt of one token,
// random tokens, rewards, and log-probabilities near those of an untrained model. Four answers to a group.
class TrainBatch {
 public:
  TrainBatch(const std::vector<int64_t>& lengths, const model::ModelConfig& shape, std::mt19937_64& random);

  const std::vector<const TrajectoryGroup*>& groups() const { return pointers_; }
  int64_t tokens() const { return tokens_; }

 private:
  std::vector<TrajectoryGroup> groups_;
  std::vector<const TrajectoryGroup*> pointers_;
  int64_t tokens_ = 0;
};

}  // namespace syncopate::bench
