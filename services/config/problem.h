#pragma once

#include <string>
#include <vector>

namespace syncopate::config {

// One error in a configuration, complete enough to correct it without a manual.
struct ConfigProblem {
  std::string where;            // "reverse.yaml:12", "command line" or "default"
  std::string key;              // "train.learning_rate"; "" when the file as a whole cannot be read
  std::string value;            // as it was written
  std::string expected;         // "a number from 0 to 1"
  std::string nearest;          // for an unknown key: the known key that was probably meant; "" if none is near
  std::string translated = "";  // for a key of another program: its name here

  // "reverse.yaml:12: train.learnig_rate = 0.002: expected a known key; nearest known key: train.learning_rate"
  std::string ToString() const;
};

// One line each, in the order given.
std::string ToString(const std::vector<ConfigProblem>& problems);

}  // namespace syncopate::config
