#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tools/ctl/daemons.h"

// The verbs of `syncopate ctl`. Each finds its daemon, makes its calls (blocking, each with options.timeout) and prints
// a table, or with `json` what the daemon answered. Errors are the call's, with the daemon's name put before.
namespace syncopate::ctl {

struct CtlContext {
  DaemonOptions daemons;
  bool json = false;
  std::ostream* out = nullptr;
};

struct GenerateArguments {
  std::string text;  // what a user says, as the run writes its prompts; or
  std::vector<int32_t> prompt_ids;
  std::string model;  // folder of tokenizer and chat template; "": what the run directory keeps
  double temperature = 0;
  double top_p = 1;
  int32_t top_k = 0;
  int32_t max_new_tokens = 0;           // 0: of a text as many as the run's answers may have, of ids 16
  std::vector<int32_t> stop_token_ids;  // none: of a text those that end an answer
  uint64_t seed = 0;
  bool stream = false;  // print tokens as they come
};

// What process exit code an outcome has:
//   0  it was done
//   1  anything not below
//   2  the command line is wrong, or names a daemon that there is not
//   3  the daemon cannot be reached, or did not answer in time
//   4  the daemon refused: wrong state, unknown thing, bad argument, not allowed
int CtlExitCode(const absl::Status& status);

// All daemons of the run, or the target. Prints those that answer; then UNAVAILABLE if one did not.
absl::Status CtlStatus(const CtlContext& context);
absl::Status CtlVersions(const CtlContext& context);
absl::Status CtlMembers(const CtlContext& context);
// The last sync attempts; with `follow` then each that ends, until the stream breaks.
absl::Status CtlSyncs(const CtlContext& context, int32_t last, bool follow);
// The last steps, then each new one, until the run ends.
absl::Status CtlWatch(const CtlContext& context, int32_t last);
absl::Status CtlExplain(const CtlContext& context);
// `who` in these is a daemon's name, or "" for the trainer (pause, resume, mode) or the first rollouter.
absl::Status CtlPause(const CtlContext& context, const std::string& who);
absl::Status CtlResume(const CtlContext& context, const std::string& who);
absl::Status CtlDrain(const CtlContext& context, const std::string& who);
// Level 1 moves the weights to host memory, 2 drops them.
absl::Status CtlSleep(const CtlContext& context, const std::string& who, int32_t level);
absl::Status CtlWake(const CtlContext& context, const std::string& who);
absl::Status CtlAbort(const CtlContext& context, const std::string& who, const std::string& request_id);
absl::Status CtlSync(const CtlContext& context);
absl::Status CtlEvict(const CtlContext& context, const std::string& replica_id, int32_t rank,
                      const std::string& reason);
absl::Status CtlCheckpoint(const CtlContext& context);
absl::Status CtlStop(const CtlContext& context);
// Of a text the answer's text, else a line for each token. Errors of PolicyText too.
absl::Status CtlGenerate(const CtlContext& context, const std::string& who, const GenerateArguments& arguments);
// mode is "rollout" or "trainer".
absl::Status CtlMode(const CtlContext& context, const std::string& who, const std::string& mode);

}  // namespace syncopate::ctl
