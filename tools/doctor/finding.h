#pragma once

#include <string>
#include <vector>

namespace syncopate::doctor {

// The result of one check.
struct Finding {
  enum class Level {
    kGood,
    kWarning,  // the run works, but not well, or not with a larger configuration
    kBad,      // the run does not work
  };

  Level level = Level::kGood;
  std::string subject;    // "open files"
  std::string looked_at;  // "the limit of this process (ulimit -n)"
  std::string found;      // "soft 1024, hard 524288"
  std::string remedy;     // what to do; "" for kGood
};

// One line for each finding, and below it the remedy if there is one; then a line with the counts.
std::string ToText(const std::vector<Finding>& findings);

// One JSON object a line: level ("good", "warning", "bad"), subject, looked_at, found, remedy.
std::string ToJsonLines(const std::vector<Finding>& findings);

bool AnyBad(const std::vector<Finding>& findings);

}  // namespace syncopate::doctor
