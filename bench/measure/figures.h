#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

// Functions with which benchmarks compute their figures.
namespace syncopate::bench {

// The median of `values`, which must not be empty; for an even number of values the upper one.
inline double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

inline double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// `value` rounded to the nearest multiple of `unit`.
inline double Rounded(double value, double unit) { return std::round(value / unit) * unit; }

}  // namespace syncopate::bench
