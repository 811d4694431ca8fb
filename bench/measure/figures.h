#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

// What benchmarks make their figures with.
namespace syncopate::bench {

// The middle one of `values`, of which there is one at least; of an even number the upper.
inline double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

inline double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// To the nearest multiple of `unit`.
inline double Rounded(double value, double unit) { return std::round(value / unit) * unit; }

}  // namespace syncopate::bench
