#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tools/ctl/daemons.h"

// The verbs of `syncopate ctl`. Each finds its daemon, makes its calls (blocking, each with options.timeout) and prints
// a table, or with `json` the daemon's answer. Errors are those of the call, with the daemon's name put before.
namespace syncopate::ctl {

struct CtlContext {
  DaemonOptions daemons;
  bool json = false;
  std::ostream* out = nullptr;
};

struct GenerateArguments {
  std::string text;  // a user's message, written as the run writes its prompts; or
  std::vector<int32_t> prompt_ids;
  std::string model;  // folder of tokenizer and chat template; "": the run directory's copy
  double temperature = 0;
  double top_p = 1;
  int32_t top_k = 0;
  int32_t max_new_tokens = 0;           // 0: the run's limit for a text, 16 for ids
  std::vector<int32_t> stop_token_ids;  // none: for a text the tokens that end an answer
  uint64_t seed = 0;
  bool stream = false;  // print tokens as they arrive
  std::string adapter;  // "policy" or "base"; "": policy
};

// The exit code of the process for a status:
//   0  it was done
//   1  any other error
//   2  the command line is wrong, or names a daemon that does not exist
//   3  the daemon cannot be reached, or did not answer in time
//   4  the daemon refused: wrong state, unknown thing, bad argument, not allowed
int CtlExitCode(const absl::Status& status);

// Prints the state of all daemons of the run, or of the target; then UNAVAILABLE if one did not answer.
absl::Status CtlStatus(const CtlContext& context);
absl::Status CtlVersions(const CtlContext& context);
absl::Status CtlMembers(const CtlContext& context);
// Prints the last sync attempts; with `follow` also each new one, until the stream breaks.
absl::Status CtlSyncs(const CtlContext& context, int32_t last, bool follow);
// Prints the last steps, then each new one, until the run ends.
absl::Status CtlWatch(const CtlContext& context, int32_t last);
absl::Status CtlExplain(const CtlContext& context);
// Prints how many rollouters and what staleness the run could use. FAILED_PRECONDITION (reason NOT_MEASURED) with what
// is missing while the trainer has measured too little.
absl::Status CtlSize(const CtlContext& context);
// In the functions below `who` is a daemon's name, or "" for the trainer (pause, resume, mode) or the first rollouter.
absl::Status CtlPause(const CtlContext& context, const std::string& who);
absl::Status CtlResume(const CtlContext& context, const std::string& who);
absl::Status CtlDrain(const CtlContext& context, const std::string& who);
// Level 1 moves the weights to host memory, level 2 drops them.
absl::Status CtlSleep(const CtlContext& context, const std::string& who, int32_t level);
absl::Status CtlWake(const CtlContext& context, const std::string& who);
absl::Status CtlAbort(const CtlContext& context, const std::string& who, const std::string& request_id);
absl::Status CtlSync(const CtlContext& context);
absl::Status CtlEvict(const CtlContext& context, const std::string& replica_id, int32_t rank,
                      const std::string& reason);
absl::Status CtlCheckpoint(const CtlContext& context);
absl::Status CtlStop(const CtlContext& context);
// Prints the answer's text for a text, one line a token for ids. Also errors of PolicyText.
absl::Status CtlGenerate(const CtlContext& context, const std::string& who, const GenerateArguments& arguments);
// `mode` is "rollout" or "trainer".
absl::Status CtlMode(const CtlContext& context, const std::string& who, const std::string& mode);

}  // namespace syncopate::ctl
