#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "base/trajectory.h"

namespace syncopate::rollouter {

// A histogram of times and their sum, as Prometheus needs it. `kBounds` are the upper bounds in seconds, ascending; the
// last count is of times above all bounds.
template <const auto& kBounds>
struct TimeCounts {
  std::array<int64_t, kBounds.size() + 1> counts{};
  double sum = 0;

  void Add(double seconds) {
    ++counts[static_cast<size_t>(std::lower_bound(kBounds.begin(), kBounds.end(), seconds) - kBounds.begin())];
    sum += seconds;
  }
};

// The bounds equal those of vLLM's histograms of the same names, so that its dashboards show the same classes.
inline constexpr std::array kFirstTokenBounds = {0.001, 0.005, 0.01, 0.02,  0.04,  0.06,  0.08, 0.1,
                                                 0.25,  0.5,   0.75, 1.0,   2.5,   5.0,   7.5,  10.0,
                                                 20.0,  40.0,  80.0, 160.0, 640.0, 2560.0};
inline constexpr std::array kOutputTokenBounds = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2,  0.3,  0.4, 0.5,
                                                  0.75, 1.0,   2.5,  5.0,   7.5, 10.0, 20.0, 40.0, 80.0};

// Latencies and outcomes of samples since the engine was created.
struct RequestFigures {
  TimeCounts<kFirstTokenBounds> time_to_first_token;     // from the arrival of the request, or of given tokens
  TimeCounts<kOutputTokenBounds> time_per_output_token;  // from one token of a sample to its next
  int64_t stopped = 0;                                   // ended by a stop token or sequence, or by the sink
  int64_t at_length = 0;
  int64_t aborted = 0;

  void CountFinish(FinishReason reason) {
    ++(reason == FinishReason::kStop ? stopped : reason == FinishReason::kLength ? at_length : aborted);
  }
};

}  // namespace syncopate::rollouter
