#include "bench/control/control_result.h"

#include <algorithm>
#include <cmath>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace syncopate::bench {
namespace {

std::string Number(double value) {
  const double size = std::abs(value);
  return absl::StrFormat("%.*f", size >= 1000 ? 0 : size >= 10 ? 1 : 3, value);
}

std::string GetAim(const ControlFigure& figure) {
  std::string aim;
  if (std::isfinite(figure.at_least)) absl::StrAppend(&aim, ">= ", Number(figure.at_least));
  if (std::isfinite(figure.at_most)) absl::StrAppend(&aim, aim.empty() ? "" : ", ", "<= ", Number(figure.at_most));
  return aim;
}

}  // namespace

bool ControlFigure::has_aim() const { return std::isfinite(at_least) || std::isfinite(at_most); }

bool ControlResult::AllMet() const {
  return absl::c_all_of(figures, [](const ControlFigure& figure) { return figure.met(); });
}

nlohmann::json ToJson(const ControlResult& result) {
  nlohmann::json figures = nlohmann::json::array();
  for (const ControlFigure& figure : result.figures) {
    nlohmann::json one = {{"part", figure.part},           {"name", figure.name},     {"unit", figure.unit},
                          {"median", figure.value.median}, {"min", figure.value.min}, {"max", figure.value.max},
                          {"samples", figure.value.count}};
    // An infinite bound is no aim, and JSON has no infinity.
    if (std::isfinite(figure.at_least)) one["at_least"] = figure.at_least;
    if (std::isfinite(figure.at_most)) one["at_most"] = figure.at_most;
    if (figure.has_aim()) one["met"] = figure.met();
    figures.push_back(std::move(one));
  }
  return {{"figures", figures}, {"notes", result.notes}, {"all_met", result.AllMet()}};
}

std::string ToText(const ControlResult& result) {
  std::string text =
      absl::StrFormat("%-10s %-46s %10s %22s %-6s %-12s %s\n", "part", "what", "median", "range", "unit", "aim", "met");
  for (const ControlFigure& figure : result.figures) {
    const std::string range =
        figure.value.count < 2 ? "" : absl::StrCat(Number(figure.value.min), " to ", Number(figure.value.max));
    absl::StrAppendFormat(&text, "%-10s %-46s %10s %22s %-6s %-12s %s\n", figure.part, figure.name,
                          Number(figure.value.median), range, figure.unit, GetAim(figure),
                          !figure.has_aim() ? ""
                          : figure.met()    ? "yes"
                                            : "NO");
  }
  for (const std::string& note : result.notes) absl::StrAppend(&text, note, "\n");
  return text;
}

}  // namespace syncopate::bench
