#pragma once

#include <sys/types.h>

#include <fstream>

#include "tests/support/run_harness.h"

namespace syncopate::testing {

// The process of users' Python that announced itself last in the run's folder; 0: none did. A header of its own, as
// three tests of the many that use the harness need it.
inline pid_t GetWorker(const RunHarness& run) {
  std::ifstream file(run.Path("environment.json"));
  const Json said = Json::parse(file, nullptr, /*allow_exceptions=*/false);
  return said.is_object() ? said["pid"].get<pid_t>() : 0;
}

}  // namespace syncopate::testing
