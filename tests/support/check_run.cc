// usage: syncopate-check-run RUN_DIR
// Judges a run of deploy/examples/reverse.yaml by the files that it left on disk (run_checker.h). The exit code is 1 if
// the run violates an invariant, and 2 if its files cannot be read.

#include <cstdio>

#include "tests/support/run_checker.h"

int main(int argc, char** argv) {
  using syncopate::testing::RunFindings;
  if (argc != 2) {
    std::fputs("usage: syncopate-check-run RUN_DIR\n", stderr);
    return 2;
  }
  const auto history = syncopate::testing::ReadRunHistory(argv[1]);
  if (!history.ok()) {
    std::fprintf(stderr, "%s\n", history.status().ToString().c_str());
    return 2;
  }
  const RunFindings findings = syncopate::testing::CheckRun(*history, {});
  std::printf("%s\n", findings.ToString().c_str());
  return findings.clean() ? 0 : 1;
}
