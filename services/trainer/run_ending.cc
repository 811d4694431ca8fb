#include "services/trainer/run_ending.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/backoff.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/reasons.h"
#include "services/trainer/flow_codec.h"
#include "services/trainer/run_paths.h"
#include "services/trainer/run_witnesses.h"
#include "trainer/record/run_summary.h"

namespace syncopate::trainerd {
namespace {

constexpr absl::Duration kCompletionDeadline = absl::Seconds(60);  // to tell the synchronizer
constexpr absl::Duration kCompletionRetry = absl::Milliseconds(500);
constexpr absl::Duration kSignalPoll = absl::Milliseconds(20);

FileSystem* Files() { return FileSystem::Real(); }

}  // namespace

RunEnding::RunEnding(daemon::Daemon* daemon, std::function<bool()> may_write)
    : daemon_(daemon),
      flow_file_(
          std::make_unique<trainer::FlowFile>(Files(), daemon->Path(kFlowFile), kFlowCodec, std::move(may_write))) {}

absl::StatusOr<std::unique_ptr<RunEnding>> RunEnding::Create(daemon::Daemon* daemon, std::function<bool()> may_write) {
  std::unique_ptr<RunEnding> ending(new RunEnding(daemon, std::move(may_write)));
  SYNCOPATE_ASSIGN_OR_RETURN(ending->flow_before_,
                             ending->flow_file_->Read(daemon->config().reward().judge_tokens() > 0));
  return ending;
}

void RunEnding::RemoveOldSummary() const {
  const absl::Status removed = Files()->RemoveTree(daemon_->Path(kSummaryFile));
  if (!removed.ok()) SYNCOPATE_LOG(kWarning, "an outdated summary.json stays: %s", removed.ToString());
}

absl::Status RunEnding::Finish(const absl::StatusOr<trainer::StepLoop::Outcome>& outcome, double wall_seconds) {
  if (outcome.ok() && *outcome == trainer::StepLoop::Outcome::kFenced) return FinishFenced();
  const bool completed = outcome.ok() && *outcome == trainer::StepLoop::Outcome::kCompleted;
  const std::string status = completed ? "completed" : outcome.ok() ? "stopped" : "failed";
  if (parts_.ranks != nullptr) parts_.ranks->Stop(outcome.ok() ? parts_.refused() : outcome.status(), completed);
  parts_.data->CloseIntake();  // so that the summary agrees with the log
  const trainer::FlowSums flow = FlowSoFar(wall_seconds);
  flow_file_->Write(flow);
  // An incarnation that made no step has nothing to add to an earlier summary; but the earlier one may have died before
  // it wrote a summary of its last steps.
  const int64_t step = parts_.loop->GetStatus().version.step;
  // A run of evaluations alone is complete at step 0.
  if (HasMadeSteps() || ((step > 0 || completed) && !HasSummaryFor(step, status))) {
    const absl::Status written = WriteSummary(status, flow);
    if (!written.ok()) SYNCOPATE_LOG(kError, "no summary.json: %s", written.ToString());
  }
  const absl::Status why = completed ? AwaitEnd() : outcome.ok() ? parts_.refused() : outcome.status();
  daemon_->BeginStop(absl::StrCat("the run is over: ", status), why);
  parts_.membership->Leave(absl::StrCat("the run is over: ", status));
  return why;
}

// The run directory, with its summary, belongs to another trainer now: nothing is written.
absl::Status RunEnding::FinishFenced() {
  const absl::Status refused = parts_.refused();
  const absl::Status why = refused.ok() ? Error(absl::StatusCode::kFailedPrecondition, reason::kFenced,
                                                absl::StrCat("a newer trainer works in ", daemon_->run_dir()))
                                        : refused;
  if (parts_.ranks != nullptr) parts_.ranks->Stop(why, /*completed=*/false);
  daemon_->BeginStop("a newer trainer has taken over", why);
  parts_.membership->Leave("a newer trainer has taken over");
  return why;
}

absl::Status RunEnding::AwaitEnd() {
  const PolicyVersion last = parts_.loop->GetStatus().version;
  const bool ends = daemon_->exit_on_completion();
  const absl::Time deadline = Clock::Real()->Now() + kCompletionDeadline;
  absl::Time next_try = absl::InfinitePast();
  absl::Status told = Error(absl::StatusCode::kUnavailable, "NOT_TOLD", "not tried yet");
  if (!ends) SYNCOPATE_LOG(kInfo, "the run is complete; this process stays until it is stopped");
  while (!parts_.loop->stop_requested() && !daemon_->StopRequested(kSignalPoll)) {
    parts_.show_state();
    SYNCOPATE_RETURN_IF_ERROR(parts_.refused());
    if (told.ok() || Clock::Real()->Now() < next_try) continue;
    next_try = Clock::Real()->Now() + kCompletionRetry;
    told = parts_.membership->synchronizer()->CompleteRun(last);
    if (IsRefusal(told) || (ends && told.ok())) return told;
    if (ends && Clock::Real()->Now() > deadline) {
      return Error(absl::StatusCode::kUnavailable, "SYNCHRONIZER_LOST",
                   absl::StrCat("the run is complete and saved, but the synchronizer could not be told: ",
                                std::string(told.message()), "; a trainer that is started again tells it"));
    }
  }
  return parts_.refused();
}

trainer::FlowSums RunEnding::FlowSoFar(double wall_seconds) const {
  return AddLife(flow_before_, wall_seconds, parts_.reporter->figures(), parts_.data->GetStatus(),
                 parts_.data->GetRoster());
}

bool RunEnding::HasSummaryFor(int64_t step, const std::string& status) const {
  constexpr int64_t kMaxBytes = 16 << 20;
  const absl::StatusOr<std::string> text = ReadFile(Files(), daemon_->Path(kSummaryFile), kMaxBytes);
  return text.ok() && trainer::IsSummaryFor(*text, step, status);
}

absl::Status RunEnding::WriteSummary(const std::string& status, const trainer::FlowSums& flow) {
  const trainer::StepLoop::Status loop = parts_.loop->GetStatus();
  const nlohmann::json summary =
      trainer::MakeSummary({.status = status,
                            .data = parts_.data->GetStatus(),
                            .flow = flow,
                            .best_checkpoint = loop.best_checkpoint,
                            .best_checkpoint_reward = loop.best_checkpoint_reward},
                           AskWitnesses(parts_.membership->synchronizer(), daemon_->security()));
  return WriteFileAtomically(Files(), daemon_->Path(kSummaryFile), summary.dump(2) + "\n");
}

}  // namespace syncopate::trainerd
