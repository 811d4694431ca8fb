#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/trajectory.h"
#include "trainer/data/prompts.h"

namespace syncopate::trainer {

// Figures of an evaluation's answers besides their mean reward.
struct EvaluationFigures {
  // Figures of the prompts of one data file, one data_source or one environment.
  struct Subset {
    std::string name;
    int64_t prompts = 0;
    double reward_mean = 0;
    double response_tokens_mean = 0;  // that the policy wrote
    double turns_mean = 0;            // of the policy; 0: the answers have no turns
    friend bool operator==(const Subset&, const Subset&) = default;
  };
  std::map<std::string, double> reward_parts = {};  // mean of each reward part over the answers that have it, by name
  double response_tokens_mean = 0;
  int64_t response_tokens_min = 0, response_tokens_max = 0;
  int64_t truncated = 0;  // answers cut off by the length limit
  double turns_mean = 0;  // of the policy in an answer; 0: the answers have no turns
  // Subsets ordered by name. Empty if there is only one subset, because it would repeat the mean reward.
  std::vector<Subset> files = {}, data_sources = {}, environments = {};
};

// Accumulates graded answers. Plain state; not thread-safe.
class EvaluationTally {
 public:
  // the first names to appear are kept: users' rewards may have many
  static constexpr size_t kMaxParts = 32, kMaxSubsets = 32;
  static constexpr char kNoSource[] = "(none)";  // subset name for rows without a data_source

  void Add(const Prompt& prompt, const Trajectory& answer);
  EvaluationFigures Figures() const;

 private:
  struct Sum {
    int64_t count = 0;
    double sum = 0;
    int64_t tokens = 0, turns = 0;
    double mean() const { return sum / static_cast<double>(count); }
  };
  using Sums = std::map<std::string, Sum>;
  // Adds to the sum of that name; null if there are `most` others.
  static Sum* AddTo(const std::string& name, double value, size_t most, Sums* sums);
  static void AddAnswer(const std::string& name, const Trajectory& answer, Sums* sums);
  static std::vector<EvaluationFigures::Subset> Subsets(const Sums& sums);

  int64_t answers_ = 0, tokens_ = 0, turns_ = 0, shortest_ = 0, longest_ = 0, truncated_ = 0;
  Sums parts_, files_, data_sources_, environments_;
};

}  // namespace syncopate::trainer
