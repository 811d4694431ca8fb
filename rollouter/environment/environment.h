#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace syncopate::rollouter {

// What an environment says to one action.
struct EnvironmentMessage {
  std::string text = {};                       // what the policy reads next, as a message of the user
  std::vector<std::string> tool_results = {};  // in place of `text`: messages of the role tool
  std::optional<float> reward = std::nullopt;  // of the action
  bool done = false;                           // no action follows
  bool rejected = false;                       // the sample must not be learned from; no action follows
  double seconds = 0;                          // that the answer took; 0: not measured, as of what is built in
};

// One game: its state lasts from Reset() to its destruction. A function of the row, the seed and the actions alone, so
// that a play can be repeated. An error means a fault of the data or the code, not of the policy: what a policy may
// write wrongly is answered in words. Not thread-safe; does not block.
class EnvironmentGame {
 public:
  virtual ~EnvironmentGame() = default;
  // Begins the game. It says nothing: the prompt does.
  virtual absl::Status Reset(uint64_t seed) = 0;
  // `action` is the text that the policy wrote in its turn. Precondition: Reset() was OK, and no message said `done`.
  virtual absl::StatusOr<EnvironmentMessage> Step(const std::string& action) = 0;
};

// Makes a game for one row of a data file, a JSON object or empty. INVALID_ARGUMENT for a row that cannot be played.
using MakeGame = std::function<absl::StatusOr<std::unique_ptr<EnvironmentGame>>(const std::string& row_json)>;

// Environments by name. Filled before others read it, and only read after that, so reading needs no lock.
class EnvironmentRegistry {
 public:
  // Returns the environments that are built in:
  //   guess       a number from 1 to 32, by higher and lower; a right guess gives 1, every other one costs 0.1. The row's
  //               ground_truth is the number; without a row it is drawn from the seed
  //   calculator  an action whose last line is "calc: <expression>" gets the expression's value; every other action is the
  //               answer, and gives 1 if its last number is the row's ground_truth, else 0
  static EnvironmentRegistry BuiltIn();

  // ALREADY_EXISTS (reason ENVIRONMENT_EXISTS) if the name is taken.
  absl::Status Register(const std::string& name, MakeGame make);
  // NOT_FOUND (reason UNKNOWN_ENVIRONMENT) with the list of known names. The pointer stays valid while the registry
  // exists.
  absl::StatusOr<const MakeGame*> Find(const std::string& name) const;
  std::vector<std::string> Names() const;

 private:
  std::map<std::string, MakeGame> environments_;
};

}  // namespace syncopate::rollouter
