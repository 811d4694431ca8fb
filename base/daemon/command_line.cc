#include "base/daemon/command_line.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace syncopate::daemon {
namespace {

constexpr char kAcceptRewardChange[] = "--accept-reward-change";
constexpr char kExitOnCompletion[] = "--exit-on-completion";
constexpr char kInsecureBind[] = "--insecure-bind";
constexpr char kInterruptedCode[] = "--interrupted-code=";

absl::Status Wrong(const std::string& message) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_COMMAND_LINE", message);
}

// Exit codes 2 and 3 mean "do not restart"; an interrupted daemon may be restarted.
absl::StatusOr<int> ParseCode(const std::string& text) {
  int code = 0;
  if (absl::SimpleAtoi(text, &code) && code >= 0 && code <= 255 && code != 2 && code != 3) return code;
  return Wrong(absl::StrCat(kInterruptedCode, text, ": expected an exit code from 0 to 255 other than 2 and 3"));
}

}  // namespace

absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& words) {
  CommandLine line;
  bool insecure_bind = false;
  for (const std::string& word : words) {
    if (absl::StartsWith(word, kInterruptedCode)) {
      SYNCOPATE_ASSIGN_OR_RETURN(line.interrupted_code, ParseCode(word.substr(sizeof(kInterruptedCode) - 1)));
      continue;
    }
    if (word == "--help" || word == "-h") {
      line.help = true;
      return line;
    }
    if (word == kExitOnCompletion) {
      line.exit_on_completion = true;
    } else if (word == kAcceptRewardChange) {
      line.accept_reward_change = true;
    } else if (word == kInsecureBind) {
      insecure_bind = true;
    } else if (absl::StartsWith(word, "-")) {
      return Wrong(absl::StrCat("there is no flag ", word));
    } else if (line.config.empty() && line.overrides.empty()) {
      line.config = word;
    } else if (!absl::StrContains(word, "=")) {
      return Wrong(absl::StrCat("a second file, ", word, "; after CONFIG come section.key=value and flags"));
    } else {
      line.overrides.push_back(word);
    }
  }
  if (line.config.empty()) return Wrong("CONFIG is missing");
  if (insecure_bind) line.overrides.push_back("run.insecure_bind=true");
  return line;
}

std::string MakeUsage(const std::string& role) {
  return absl::StrCat(
      "usage: syncopate-", role,
      " CONFIG [--exit-on-completion] [--interrupted-code=N] [--insecure-bind]\n"
      "       [--accept-reward-change] [section.key=value ...]\n"
      "  --exit-on-completion  end with code 0 when the run is complete; otherwise stay, serve status\n"
      "                        and metrics, and wait to be stopped\n"
      "  --interrupted-code=N  end with code N, not 0, when a signal has stopped it in order\n"
      "  --insecure-bind       the same as run.insecure_bind=true: listen on any address without TLS\n"
      "  --accept-reward-change  of a trainer: resume though the reward, or the code of the worker that\n"
      "                        gives it, is not the run's\n"
      "Exit codes: 0 done; 1 failed; 2 wrong configuration, do not restart; 3 another process has taken\n"
      "over, do not restart; 4 the synchronizer is lost or will have no more of this process, or a\n"
      "device is stuck: restart.\n"
      "`syncopate config show` prints every key with its default.\n");
}

}  // namespace syncopate::daemon
