#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "base/daemon/daemon_endpoints.h"
#include "tools/records/step_record.h"
#include "tools/run/run_view.h"

namespace syncopate::run {

// Shows a run to the user who started it. Not thread-safe.
class RunDisplay {
 public:
  virtual ~RunDisplay() = default;
  // All daemons are ready. `page`: the address of the run's page, "" if none is served.
  virtual void Started(const std::string& run_dir, const std::vector<daemon::DaemonEndpoint>& daemons,
                       const std::string& page) = 0;
  // A new line of metrics.jsonl; `line` is its text.
  virtual void Step(const records::StepRecord& record, const std::string& line) = 0;
  // Something happened to a daemon, e.g. ("rollouter-1", "was killed by signal 9; it is started again").
  virtual void Daemon(const std::string& daemon, const std::string& what) = 0;
  // About ten times a second.
  virtual void Refresh(const RunView& view) = 0;
  virtual void Ended(const RunView& view, const std::string& run_dir, const nlohmann::json& summary) = 0;
};

enum class RunOutput {
  kLive,   // one table that is redrawn, for a terminal
  kPlain,  // lines, at most one step a second
  kQuiet,  // only the page's address, problems that a user must solve, and the end
  kJson,   // one object a line: {"event": "started" | "step" | "daemon" | "alarm" | "ended", ...}
};

// `program` is the name of this program, for suggested commands. `out` must outlive the display.
std::unique_ptr<RunDisplay> MakeDisplay(RunOutput output, const std::string& program, std::ostream* out);

// The last lines of a run: what it reached, where its files are, how to go on.
std::string RenderEnd(const RunView& view, const std::string& program, const std::string& run_dir,
                      const nlohmann::json& summary);

}  // namespace syncopate::run
