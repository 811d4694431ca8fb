#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace syncopate::report {

// Figures over a growing axis (training steps, milliseconds), in a bounded number of points: when there are too many,
// each two neighbours become one, which keeps the mean, the smallest and the largest of what it stands for. Plain
// state, no lock.
class Series {
 public:
  explicit Series(size_t max_points = 2048) : max_points_(max_points) {}

  // Values that belong to `at`, which is not below any before. What is not finite is left out. More values of the same
  // place are added to its point.
  void Add(int64_t at, const std::vector<std::pair<std::string, double>>& values);
  // Forgets the points that begin at `at` or later. One that began before stays whole.
  void DropFrom(int64_t at);

  size_t size() const { return points_.size(); }
  // How many points of the first resolution one stands for.
  int64_t span() const { return span_; }

  // What somebody who has the first `have` points of resolution `span` lacks; all if the resolution has changed since:
  //   {"span": 4, "from": 9, "at": [40, 44],
  //    "figures": {"loss": {"mean": [0.5, null], "low": [0.25, null], "high": [0.75, null]}}}
  // From point number `from`: those before hold good. "at" is where each point ends; low and high are left out where
  // they are nowhere apart from the mean; null is where a figure has no value.
  nlohmann::json Since(int64_t span, size_t have) const;
  nlohmann::json All() const { return Since(0, 0); }

 private:
  struct Cell {
    double sum = 0;
    double low = 0;
    double high = 0;
    int64_t count = 0;
  };
  struct Point {
    int64_t first = 0;
    int64_t last = 0;
    int64_t places = 0;            // that were added
    std::vector<Cell> cells = {};  // by column; those at the end may be missing
  };

  static void AddCells(const std::vector<Cell>& more, std::vector<Cell>* cells);
  void Halve();
  nlohmann::json Figure(size_t column, size_t from) const;

  size_t max_points_;
  int64_t span_ = 1;
  std::map<std::string, size_t> columns_;
  std::vector<Point> points_;
};

}  // namespace syncopate::report
