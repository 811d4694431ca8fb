#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace syncopate::report {

// Figures over a growing axis (training steps, milliseconds), in a bounded number of points. When there are too many
// points, each two neighbours are merged into one, which keeps the mean, the smallest and the largest value. Plain
// state, no lock.
class Series {
 public:
  explicit Series(size_t max_points = 2048) : max_points_(max_points) {}

  // Adds values at place `at`, which must not be below any earlier one. Values that are not finite are left out.
  // Further values at the same place are added to its point.
  void Add(int64_t at, const std::vector<std::pair<std::string, double>>& values);
  // Drops the points that begin at `at` or later. A point that began before stays whole.
  void DropFrom(int64_t at);

  size_t size() const { return points_.size(); }
  // The number of original points that one point stands for.
  int64_t span() const { return span_; }

  // The points that a reader with the first `have` points of resolution `span` lacks; all if the resolution has changed
  // since:
  //   {"span": 4, "from": 9, "at": [40, 44],
  //    "figures": {"loss": {"mean": [0.5, null], "low": [0.25, null], "high": [0.75, null]}}}
  // "from": the number of the first point here; the points before it are unchanged. "at": where each point ends. low
  // and high are left out if they are equal to the mean everywhere; null: no value of that figure.
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
    int64_t places = 0;            // number of places added
    std::vector<Cell> cells = {};  // by column; the last ones may be missing
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
