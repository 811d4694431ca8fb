#include "bench/train/train_batches.h"

#include <algorithm>
#include <cmath>

namespace syncopate::bench {
namespace {

constexpr size_t kAnswers = 4;

}  // namespace

std::vector<int64_t> DrawLengths(int64_t tokens, int64_t longest, bool ragged, std::mt19937_64& random) {
  // A median of 1000 for a longest length of 4096, which is typical of answers of a reasoning model.
  std::lognormal_distribution<double> share(std::log(0.242), 0.8);
  std::vector<int64_t> lengths;
  for (int64_t left = tokens; left > 0; left -= lengths.back()) {
    const double drawn = ragged ? std::clamp(share(random), 1.0 / 16, 1.0) : 1;
    lengths.push_back(std::min(left, static_cast<int64_t>(drawn * static_cast<double>(longest))));
  }
  return lengths;
}

TrainBatch::TrainBatch(const std::vector<int64_t>& lengths, const model::ModelConfig& shape, std::mt19937_64& random) {
  std::uniform_int_distribution<int32_t> token(0, static_cast<int32_t>(shape.vocab_size) - 1);
  // About the log-probability that a policy with random weights gives, so that ratios are near 1 and nothing is
  // clipped.
  std::normal_distribution<float> noise(-std::log(static_cast<float>(shape.vocab_size)), 0.1F);
  std::uniform_real_distribution<float> reward(0, 1);
  groups_.resize((lengths.size() + kAnswers - 1) / kAnswers);
  for (size_t i = 0; i < lengths.size(); ++i) {
    TrajectoryGroup& group = groups_[i / kAnswers];
    // Prompts have one token, so that nearly all of the packed tokens are trained.
    if (group.prompt_ids.empty()) group.prompt_ids.push_back(token(random));
    Trajectory& sample = group.samples.emplace_back();
    for (int64_t t = 0; t < lengths[i]; ++t) {
      sample.tokens.push_back(token(random));
      sample.logprobs.push_back(noise(random));
    }
    sample.reward = reward(random);
    tokens_ += lengths[i];
  }
  for (const TrajectoryGroup& group : groups_) pointers_.push_back(&group);
}

}  // namespace syncopate::bench
