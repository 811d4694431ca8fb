#include "rollouter/environment/environment.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rollouter/environment/calculator.h"
#include "rollouter/environment/guess.h"

namespace syncopate::rollouter {

EnvironmentRegistry EnvironmentRegistry::BuiltIn() {
  EnvironmentRegistry registry;
  registry.environments_ = {{"guess", MakeGuess}, {"calculator", MakeCalculator}};
  return registry;
}

absl::Status EnvironmentRegistry::Register(const std::string& name, MakeGame make) {
  if (environments_.emplace(name, std::move(make)).second) return absl::OkStatus();
  return Error(absl::StatusCode::kAlreadyExists, "ENVIRONMENT_EXISTS",
               absl::StrCat("there already is an environment called '", name, "'"));
}

absl::StatusOr<const MakeGame*> EnvironmentRegistry::Find(const std::string& name) const {
  auto found = environments_.find(name);
  if (found != environments_.end()) return &found->second;
  return Error(absl::StatusCode::kNotFound, "UNKNOWN_ENVIRONMENT",
               absl::StrCat("no environment is called '", name, "'; there are ", absl::StrJoin(Names(), ", ")));
}

std::vector<std::string> EnvironmentRegistry::Names() const {
  std::vector<std::string> names;
  for (const auto& [name, make] : environments_) names.push_back(name);
  return names;
}

}  // namespace syncopate::rollouter
