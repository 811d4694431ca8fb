#pragma once

#include <string>
#include <vector>

namespace syncopate::doctor {

// One thing that was looked at.
struct Finding {
  enum class Level {
    kGood,
    kWarning,  // it will run, but not well, or not with a larger configuration
    kBad,      // it will not run
  };

  Level level = Level::kGood;
  std::string subject;    // "open files"
  std::string looked_at;  // "the limit of this process (ulimit -n)"
  std::string found;      // "soft 1024, hard 524288"
  std::string remedy;     // what to do; "" if kGood
};

// A line for each, and below it the remedy if there is one; then a line that counts.
std::string ToText(const std::vector<Finding>& findings);

// One JSON object a line: level ("good", "warning", "bad"), subject, looked_at, found, remedy.
std::string ToJsonLines(const std::vector<Finding>& findings);

bool AnyBad(const std::vector<Finding>& findings);

}  // namespace syncopate::doctor
