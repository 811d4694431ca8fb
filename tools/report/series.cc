#include "tools/report/series.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"

namespace syncopate::report {
namespace {

using nlohmann::json;

// Six digits are more than a screen shows, and fewer digits halve the size of a page.
double Rounded(double value) {
  double rounded = value;
  return absl::SimpleAtod(absl::StrFormat("%.6g", value), &rounded) ? rounded : value;
}

}  // namespace

void Series::Add(int64_t at, const std::vector<std::pair<std::string, double>>& values) {
  // The last point takes new places until it covers as many as the points before it.
  const bool is_same_place = !points_.empty() && points_.back().last == at;
  if (!is_same_place) {
    if (points_.empty() || points_.back().places >= span_) {
      if (points_.size() >= max_points_) Halve();
      if (points_.empty() || points_.back().places >= span_) points_.push_back({.first = at});
    }
    ++points_.back().places;
  }
  Point& point = points_.back();
  point.last = at;
  for (const auto& [name, value] : values) {
    if (!std::isfinite(value)) continue;
    const size_t column = columns_.emplace(name, columns_.size()).first->second;
    // A figure may begin in the middle of a run.
    if (point.cells.size() <= column) point.cells.resize(column + 1);
    Cell& cell = point.cells[column];
    cell.low = cell.count == 0 ? value : std::min(cell.low, value);
    cell.high = cell.count == 0 ? value : std::max(cell.high, value);
    cell.sum += value;
    ++cell.count;
  }
}

void Series::DropFrom(int64_t at) {
  while (!points_.empty() && points_.back().first >= at) points_.pop_back();
}

void Series::AddCells(const std::vector<Cell>& more, std::vector<Cell>* cells) {
  if (cells->size() < more.size()) cells->resize(more.size());
  for (size_t i = 0; i < more.size(); ++i) {
    if (more[i].count == 0) continue;
    Cell& cell = (*cells)[i];
    cell.low = cell.count == 0 ? more[i].low : std::min(cell.low, more[i].low);
    cell.high = cell.count == 0 ? more[i].high : std::max(cell.high, more[i].high);
    cell.sum += more[i].sum;
    cell.count += more[i].count;
  }
}

// Merges neighbours into one point, so that memory and page stay bounded however long the run is. low and high are
// kept, so a spike of one step stays visible.
void Series::Halve() {
  size_t kept = 0;
  for (size_t i = 0; i < points_.size(); i += 2, ++kept) {
    Point point = std::move(points_[i]);
    if (i + 1 < points_.size()) {
      point.last = points_[i + 1].last;
      point.places += points_[i + 1].places;
      AddCells(points_[i + 1].cells, &point.cells);
    }
    points_[kept] = std::move(point);
  }
  points_.resize(kept);
  span_ *= 2;
}

json Series::Figure(size_t column, size_t from) const {
  json means = json::array(), lows = json::array(), highs = json::array();
  bool has_spread = false;
  for (size_t i = from; i < points_.size(); ++i) {
    const std::vector<Cell>& cells = points_[i].cells;
    if (column >= cells.size() || cells[column].count == 0) {
      for (json* values : {&means, &lows, &highs}) values->push_back(nullptr);
      continue;
    }
    const Cell& cell = cells[column];
    has_spread = has_spread || cell.low != cell.high;
    means.push_back(Rounded(cell.sum / static_cast<double>(cell.count)));
    lows.push_back(Rounded(cell.low));
    highs.push_back(Rounded(cell.high));
  }
  if (!has_spread) return {{"mean", std::move(means)}};
  return {{"mean", std::move(means)}, {"low", std::move(lows)}, {"high", std::move(highs)}};
}

json Series::Since(int64_t span, size_t have) const {
  // The last point that the reader has may have grown since.
  const size_t from = span == span_ && have <= points_.size() && have > 0 ? have - 1 : 0;
  json at = json::array();
  for (size_t i = from; i < points_.size(); ++i) at.push_back(points_[i].last);
  json figures = json::object();
  for (const auto& [name, column] : columns_) figures[name] = Figure(column, from);
  return {{"span", span_}, {"from", from}, {"at", std::move(at)}, {"figures", std::move(figures)}};
}

}  // namespace syncopate::report
