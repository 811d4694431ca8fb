#include "trainer/loss/outcomes.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace syncopate::loss {
namespace {

absl::Status NoParts(const std::string& message) {
  return Error(absl::StatusCode::kInvalidArgument, "NO_REWARD_PARTS", message);
}

// Log-probs that differ by more say nothing more; the same bound as in the loss.
constexpr double kLogRatioBound = 20.0;

std::vector<double> ReferencePenalties(const Trajectory& sample, const std::vector<float>& reference,
                                       double coefficient) {
  SYNCOPATE_CHECK(static_cast<int64_t>(reference.size()) == WrittenTokens(sample));
  std::vector<double> penalties;
  ForWrittenTokens(sample, [&](int32_t token) {
    // log(pi / ref) of a token that pi sampled: an unbiased estimate of the divergence at its place.
    const double k1 = double{sample.logprobs[static_cast<size_t>(token)]} - double{reference[penalties.size()]};
    penalties.push_back(coefficient * std::clamp(k1, -kLogRatioBound, kLogRatioBound));
  });
  return penalties;
}

absl::StatusOr<std::vector<double>> GetParts(const TrajectoryGroup& group, const Trajectory& sample,
                                             const std::vector<RewardWeight>& wanted) {
  std::vector<double> values;
  for (const RewardWeight& weight : wanted) {
    auto found = std::find_if(sample.reward_parts.begin(), sample.reward_parts.end(),
                              [&](const RewardPart& part) { return part.name == weight.part; });
    if (found == sample.reward_parts.end()) {
      std::string names;
      for (const RewardPart& part : sample.reward_parts) absl::StrAppend(&names, names.empty() ? "" : ", ", part.name);
      return NoParts(absl::StrCat("a sample of group ", group.lease.group.ToString(), " has no reward part ",
                                  weight.part, ", which gdpo counts; it has ", names.empty() ? "none" : names,
                                  ": correct train.reward_weights, or take a reward that reports its parts"));
    }
    values.push_back(found->value);
  }
  return values;
}

// The rewards of turns, at the last token that the policy wrote in each.
std::vector<EarlyReward> GetTurnRewards(const Trajectory& sample) {
  std::vector<EarlyReward> rewards;
  int64_t given = 0;
  auto range = sample.given.begin();
  for (const Turn& turn : sample.turns) {
    for (; range != sample.given.end() && range->end <= turn.end; ++range) given += range->end - range->begin;
    if (turn.reward != 0) rewards.push_back({.token = turn.end - given - 1, .value = turn.reward});
  }
  return rewards;
}

}  // namespace

double OverlongPenalty(int64_t length, const LossOptions& options) {
  const double tokens = static_cast<double>(length), longest = static_cast<double>(options.max_response_tokens);
  if (options.overlong == Overlong::kLinear) return -options.overlong_factor * tokens / longest;
  if (options.overlong != Overlong::kDapo) return 0;
  // DAPO (arXiv 2503.14476, soft overlong punishment): none up to longest - cache, then down to -1 at the limit, in a
  // straight line.
  const double cache = static_cast<double>(options.overlong_cache);
  return options.overlong_factor * std::clamp((longest - cache - tokens) / cache, -1.0, 0.0);
}

// Cut off by the limit: whether it would have been right is not known.
bool IsMasked(const Trajectory& sample, const LossOptions& options) {
  return options.overlong == Overlong::kMask && sample.finish == FinishReason::kLength;
}

bool HasNoLoss(const Trajectory& sample, const LossOptions& options) {
  return sample.rejected || IsMasked(sample, options);
}

absl::StatusOr<std::vector<RewardWeight>> PartWeights(const std::vector<const TrajectoryGroup*>& groups,
                                                      const AdvantageOptions& options) {
  if (options.estimator != AdvantageEstimator::kGdpo) return std::vector<RewardWeight>{};
  // Without reward_weights all parts have weight 1. Samples of a group have the same parts, which was checked when
  // the samples were accepted.
  if (!options.reward_weights.empty()) return options.reward_weights;
  std::vector<RewardWeight> weights;
  for (const TrajectoryGroup* group : groups) {
    for (const Trajectory& sample : group->samples) {
      for (const RewardPart& part : sample.reward_parts) weights.push_back({part.name, 1.0});
      if (!weights.empty()) return weights;
    }
  }
  return NoParts(
      "gdpo needs the parts of a reward, and this reward reports none: take a reward that has parts, or "
      "another train.advantage");
}

absl::StatusOr<std::vector<GroupOutcomes>> GetOutcomes(const std::vector<const TrajectoryGroup*>& groups,
                                                       const LossOptions& options,
                                                       const std::vector<RewardWeight>& parts,
                                                       const std::vector<std::vector<float>>& reference) {
  std::vector<GroupOutcomes> outcomes;
  size_t index = 0;
  for (const TrajectoryGroup* group : groups) {
    GroupOutcomes& made = outcomes.emplace_back();
    for (const Trajectory& sample : group->samples) {
      SampleOutcome& outcome = made.emplace_back();
      const int64_t length = WrittenTokens(sample);
      outcome.reward = double{sample.reward} + OverlongPenalty(length, options);
      // Without tokens it weighs nothing where tokens are counted.
      outcome.tokens = HasNoLoss(sample, options) ? 0 : length;
      outcome.rejected = sample.rejected;
      outcome.early = GetTurnRewards(sample);
      SYNCOPATE_ASSIGN_OR_RETURN(outcome.parts, GetParts(*group, sample, parts));
      if (!reference.empty()) {
        outcome.penalties = ReferencePenalties(sample, reference[index], options.kl_coefficient);
      }
      ++index;
    }
  }
  return outcomes;
}

namespace {

// Counts answers by their written tokens.
class Lengths {
 public:
  explicit Lengths(DataFigures* figures) : figures_(*figures) {}

  // `masked`: none of its tokens has a loss; else `beyond` of them have none.
  void Add(int64_t length, bool masked, int64_t beyond = 0) {
    const bool first = figures_.trained_samples++ == 0;
    figures_.response_tokens_min = first ? length : std::min(figures_.response_tokens_min, length);
    figures_.response_tokens_max = std::max(figures_.response_tokens_max, length);
    figures_.trained_tokens += masked ? 0 : length - beyond;
    figures_.masked_tokens += masked ? 0 : beyond;
    tokens_ += length;
  }
  void Finish() {
    if (tokens_ == 0) return;
    const auto all = static_cast<double>(tokens_);
    figures_.response_tokens_mean = all / static_cast<double>(figures_.trained_samples);
    figures_.trained_token_ratio = static_cast<double>(figures_.trained_tokens) / all;
  }

 private:
  DataFigures& figures_;
  int64_t tokens_ = 0;
};

}  // namespace

DataFigures DescribeData(const std::vector<const TrajectoryGroup*>& groups, const LossOptions& options, int64_t step) {
  DataFigures figures;
  Lengths lengths(&figures);
  std::map<std::string, std::pair<double, int64_t>> parts;  // sum and count
  int64_t played = 0;
  for (const TrajectoryGroup* group : groups) {
    for (const Trajectory& sample : group->samples) {
      lengths.Add(WrittenTokens(sample), HasNoLoss(sample, options), CountTokensBeyondAge(sample, options, step));
      figures.truncated_samples += sample.finish == FinishReason::kLength ? 1 : 0;
      figures.masked_samples += IsMasked(sample, options) ? 1 : 0;
      figures.rejected_samples += sample.rejected ? 1 : 0;
      int64_t oldest = 0;
      for (const VersionSpan& span : sample.spans) oldest = std::max(oldest, GetAge(span.version, step));
      // Spans come in the order of their tokens, and a rollouter's version never goes back.
      const int64_t newest = sample.spans.empty() ? 0 : GetAge(sample.spans.back().version, step);
      figures.in_flight_staleness_mean += static_cast<double>(oldest - newest);
      figures.in_queue_staleness_mean += static_cast<double>(newest);
      figures.mixed_version_ratio += sample.spans.size() > 1 ? 1 : 0;
      played += sample.turns.empty() ? 0 : 1;
      figures.turns_mean += static_cast<double>(sample.turns.size());
      for (const Turn& turn : sample.turns) figures.environment_seconds_mean += turn.seconds;
      if (sample.rejected) continue;  // its reward says nothing
      const int64_t bucket = std::min<int64_t>(oldest, DataFigures::kAges - 1);
      figures.reward_by_age[bucket] += sample.reward;
      ++figures.samples_by_age[bucket];
      for (const RewardPart& part : sample.reward_parts) {
        auto& [sum, count] = parts[part.name];
        sum += part.value;
        ++count;
      }
    }
  }
  lengths.Finish();
  const double samples = static_cast<double>(std::max<int64_t>(figures.trained_samples, 1));
  figures.in_flight_staleness_mean /= samples;
  figures.in_queue_staleness_mean /= samples;
  figures.mixed_version_ratio /= samples;
  figures.turns_mean /= static_cast<double>(std::max<int64_t>(played, 1));
  figures.environment_seconds_mean /= static_cast<double>(std::max<int64_t>(played, 1));
  for (const auto& [name, sum] : parts) figures.reward_parts[name] = sum.first / static_cast<double>(sum.second);
  return figures;
}

DataFigures DescribeSupervisedData(const std::vector<const TrajectoryGroup*>& groups) {
  DataFigures figures;
  Lengths lengths(&figures);
  for (const TrajectoryGroup* group : groups) {
    for (const Trajectory& sample : group->samples) lengths.Add(WrittenTokens(sample), /*masked=*/false);
  }
  lengths.Finish();
  return figures;
}

int64_t GetAge(const PolicyVersion& version, int64_t step) { return std::max<int64_t>(0, step - version.step); }

int64_t CountTokensBeyondAge(const Trajectory& sample, const LossOptions& options, int64_t step) {
  int64_t count = 0;
  if (options.max_token_age < 0) return count;
  for (const VersionSpan& span : sample.spans) {
    count += GetAge(span.version, step) > options.max_token_age ? span.end - span.begin : 0;
  }
  return count;
}

std::vector<int64_t> GetAges(const Trajectory& sample, int64_t step) {
  std::vector<int64_t> of_tokens(sample.tokens.size(), 0), ages;
  for (const VersionSpan& span : sample.spans) {
    for (int32_t t = span.begin; t < span.end; ++t) of_tokens[static_cast<size_t>(t)] = GetAge(span.version, step);
  }
  ForWrittenTokens(sample, [&](int32_t place) { ages.push_back(of_tokens[static_cast<size_t>(place)]); });
  return ages;
}

}  // namespace syncopate::loss
