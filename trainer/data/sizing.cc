#include "trainer/data/sizing.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>
#include <queue>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace syncopate::trainer {
namespace {

// How many groups are played: enough for a mean within one or two per cent, few enough for milliseconds.
constexpr int64_t kGroups = 8192;
constexpr int64_t kLeastSteps = 30, kMostSteps = 600;
// A measured pace further than this from the prediction was measured in other circumstances.
constexpr double kLeastFactor = 0.5, kMostFactor = 1.25;
// Below this share of kept groups a play would take long; such a run learns from hardly anything.
constexpr double kLeastKept = 0.05;
// A gain below this is none.
constexpr double kGain = 1.02;

// Adds a fraction up: true as often as the fraction says, as evenly as possible.
class Share {
 public:
  explicit Share(double fraction) : fraction_(fraction) {}
  bool Next() {
    sum_ += fraction_;
    if (sum_ < 1 - 1e-9) return false;
    sum_ -= 1;
    return true;
  }

 private:
  double fraction_;
  double sum_ = 0;
};

// The measured times in a fixed random order: neighbours are independent, and each cycle has all of them.
std::vector<double> DealTimes(std::vector<double> dealt) {
  // Not std::shuffle, whose order is the library's.
  std::mt19937_64 random(1);
  for (size_t i = dealt.size(); i > 1; --i) std::swap(dealt[i - 1], dealt[random() % i]);
  return dealt;
}

// A run in virtual time, of which only the gate is real.
class GatePlay {
 public:
  GatePlay(const SizingInputs& inputs, int64_t slots)
      : inputs_(inputs),
        slots_(slots),
        times_(DealTimes(inputs.group_seconds)),
        gate_(inputs.gate),
        kept_(std::max(inputs.kept_ratio, kLeastKept)),
        lags_(inputs.lag_steps - std::floor(inputs.lag_steps)) {}

  double Run() {
    const int64_t steps = std::clamp(kGroups / inputs_.gate.batch_groups, kLeastSteps, kMostSteps);
    const int64_t settled = steps / 3;
    double begin = 0;
    while (gate_.step() < steps) {
      while (Admit() || Take() || Drop()) {
      }
      if (!Advance()) return 0;
      if (gate_.step() == settled && begin == 0) begin = now_;
    }
    return static_cast<double>(steps - settled) / (now_ - begin);
  }

 private:
  using Completion = std::pair<double, GroupId>;

  bool Admit() {
    if (running_ >= slots_) return false;
    if (!start_.has_value()) {
      const auto lag = static_cast<int64_t>(inputs_.lag_steps) + (lags_.Next() ? 1 : 0);
      start_ = std::max<int64_t>(0, gate_.step() - lag);
    }
    if (!gate_.MayAdmit(*start_)) return false;
    const GroupId group{0, next_++};
    gate_.Admit(group, *std::exchange(start_, std::nullopt));
    completions_.emplace(now_ + times_[static_cast<size_t>(group.ordinal) % times_.size()], group);
    ++running_;
    return true;
  }

  bool Take() {
    const std::vector<GroupId> batch = gate_.Pick();
    if (batch.empty()) return false;
    gate_.BeginStep(batch);
    step_end_ = now_ + inputs_.step_seconds;
    return true;
  }

  bool Drop() {
    if (inputs_.gate.on_deadline != OnDeadline::kDrop) return false;
    const std::optional<GroupId> blocker = gate_.Blocker();
    if (!blocker.has_value()) return false;
    gate_.Release(*blocker);
    --running_;
    return true;
  }

  // The next event. False: there is none, so the run stands still.
  bool Advance() {
    const bool ends = step_end_.has_value() && (completions_.empty() || *step_end_ <= completions_.top().first);
    if (ends) {
      now_ = *std::exchange(step_end_, std::nullopt);
      gate_.EndStep();
      start_.reset();  // a rollouter serves a newer version by now
      return true;
    }
    if (completions_.empty()) return false;
    const auto [time, group] = completions_.top();
    completions_.pop();
    now_ = time;
    if (!gate_.IsOutstanding(group)) return true;  // dropped
    --running_;
    if (kept_.Next()) {
      gate_.Complete(group);
    } else {
      gate_.Release(group);
    }
    return true;
  }

  const SizingInputs& inputs_;
  const int64_t slots_;
  const std::vector<double> times_;
  StalenessGate gate_;
  Share kept_;
  Share lags_;
  std::priority_queue<Completion, std::vector<Completion>, std::greater<>> completions_;
  std::optional<double> step_end_;
  std::optional<int64_t> start_;  // of the next lease
  double now_ = 0;
  int64_t running_ = 0, next_ = 0;
};

// Predictions by the number of rollouters.
class Predictions {
 public:
  Predictions(SizingInputs inputs, double slots_per_rollouter)
      : inputs_(std::move(inputs)), per_rollouter_(slots_per_rollouter) {}

  double At(int64_t rollouters) const {
    return PredictStepRate(inputs_, std::llround(static_cast<double>(rollouters) * per_rollouter_));
  }
  // More slots than the gate lets be outstanding are of no use.
  int64_t Most() const {
    const double outstanding = (inputs_.gate.target_staleness + 1) * static_cast<double>(inputs_.gate.batch_groups);
    return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(outstanding / per_rollouter_)));
  }
  // The least number that reaches `rate`, which Most() reaches.
  int64_t Least(double rate) const {
    int64_t low = 1, high = Most();
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (At(middle) >= rate) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }

 private:
  SizingInputs inputs_;
  double per_rollouter_;
};

absl::Status NotMeasured(const std::string& text) {
  return Error(absl::StatusCode::kFailedPrecondition, "NOT_MEASURED", absl::StrCat("nothing to advise yet: ", text));
}

absl::Status CheckMeasured(const SizingInputs& inputs) {
  if (inputs.rollouters < 1 || inputs.slots < 1) {
    return NotMeasured("no rollouter may get leases; `syncopate ctl explain` says why");
  }
  const auto groups = static_cast<int64_t>(inputs.group_seconds.size());
  if (groups < inputs.gate.batch_groups) {
    return NotMeasured(absl::StrCat(groups, " groups were answered; ask again after ", inputs.gate.batch_groups));
  }
  if (inputs.step_seconds <= 0) return NotMeasured("fewer than two steps were made from answers of rollouters");
  return absl::OkStatus();
}

// The two knobs of the law, and what they would give.
void AdviseStaleness(const SizingInputs& inputs, SizingAdvice* advice) {
  advice->target_staleness = advice->mean_group_seconds / inputs.step_seconds;
  advice->max_staleness = static_cast<int64_t>(
      std::ceil(std::max(advice->longest_group_seconds / inputs.step_seconds, advice->target_staleness)));
  SizingInputs advised = inputs;
  advised.gate.target_staleness = advice->target_staleness;
  advised.gate.max_staleness = advice->max_staleness;
  const Predictions predictions(std::move(advised), advice->slots_per_rollouter);
  advice->advised_rollouters = predictions.Least(kEnough * predictions.At(predictions.Most()));
  advice->advised_steps_per_second = predictions.At(advice->advised_rollouters);
}

}  // namespace

const char* RunLimitName(RunLimit limit) {
  switch (limit) {
    case RunLimit::kTrainer:
      return "trainer";
    case RunLimit::kRollouters:
      return "rollouters";
    case RunLimit::kStaleness:
      break;
  }
  return "staleness";
}

double PredictStepRate(const SizingInputs& inputs, int64_t slots) {
  if (slots < 1 || inputs.group_seconds.empty() || inputs.step_seconds <= 0 || inputs.kept_ratio <= 0) return 0;
  return GatePlay(inputs, slots).Run();
}

absl::StatusOr<SizingAdvice> SizeRun(const SizingInputs& inputs) {
  SYNCOPATE_RETURN_IF_ERROR(CheckMeasured(inputs));
  SizingAdvice advice{.rollouters = inputs.rollouters, .step_seconds = inputs.step_seconds};
  advice.slots_per_rollouter = static_cast<double>(inputs.slots) / static_cast<double>(inputs.rollouters);
  advice.steps_per_second_most = 1 / inputs.step_seconds;
  const std::vector<double>& times = inputs.group_seconds;
  advice.mean_group_seconds = std::accumulate(times.begin(), times.end(), 0.0) / static_cast<double>(times.size());
  advice.longest_group_seconds = *std::max_element(times.begin(), times.end());

  const Predictions predictions(inputs, advice.slots_per_rollouter);
  const double now = predictions.At(inputs.rollouters), any = predictions.At(predictions.Most());
  double factor = 1;
  if (inputs.interval_seconds > 0 && now > 0) {
    factor = std::clamp(1 / (inputs.interval_seconds * now), kLeastFactor, kMostFactor);
  }
  auto scale = [&](double rate) { return std::min(rate * factor, advice.steps_per_second_most); };
  advice.steps_per_second = inputs.interval_seconds > 0 ? 1 / inputs.interval_seconds : now;
  // No rollouter slows a run down: a prediction that says so is off by chance.
  advice.steps_per_second_one_more = scale(std::max(now, predictions.At(inputs.rollouters + 1)));
  advice.steps_per_second_one_fewer = scale(std::min(now, predictions.At(inputs.rollouters - 1)));
  advice.trainer_idle_ratio = std::max(0.0, 1 - advice.steps_per_second * inputs.step_seconds);
  advice.useful_rollouters = predictions.Least(kEnough * any);
  if (advice.trainer_idle_ratio <= 1 - kEnough) {
    advice.limit = RunLimit::kTrainer;
  } else if (advice.useful_rollouters > inputs.rollouters || any > kGain / kEnough * now) {
    advice.limit = RunLimit::kRollouters;
  } else {
    advice.limit = RunLimit::kStaleness;
  }
  AdviseStaleness(inputs, &advice);
  return advice;
}

}  // namespace syncopate::trainer
