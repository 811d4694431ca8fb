#include "bench/sync/fault_bench.h"

#include <signal.h>

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "bench/process/json_fields.h"

namespace syncopate::bench {
namespace {

using nlohmann::json;

constexpr absl::Duration kStopped = absl::Seconds(3);  // how long a stopped synchronizer stays stopped

}  // namespace

std::string FaultBench::Victim() const {
  if (sync_case_.fault.target == "synchronizer") return kSynchronizerName;
  return sync_case_.fault.target == "source" ? rounds_.Sources().back() : rounds_.Receivers().back();
}

// A process that signals itself fails exactly at that stage; a signal from outside would come some milliseconds late.
// The synchronizer, and sources that do nothing at that stage, are signalled when a receiver reports the stage.
bool FaultBench::FallsByItself() const {
  if (sync_case_.fault.target == "receiver") return true;
  return sync_case_.fault.target == "source" && sync_case_.fault.stage != "install";
}

absl::StatusOr<FaultOutcome> FaultBench::Run() {
  const std::string victim = Victim();
  rounds_.ReportProgress(
      absl::StrCat(killed() ? "SIGKILL" : "SIGSTOP", " to ", victim, " at ", sync_case_.fault.stage));
  SYNCOPATE_RETURN_IF_ERROR(Arm(victim));
  SYNCOPATE_RETURN_IF_ERROR(rounds_.PublishNext());
  const int64_t blown_step = rounds_.step();
  SYNCOPATE_ASSIGN_OR_RETURN(const double struck, AwaitBlow(victim));
  SYNCOPATE_ASSIGN_OR_RETURN(const std::optional<double> mended, Mend(victim));
  SYNCOPATE_RETURN_IF_ERROR(cast_.Await([this] { return rounds_.AllServe(rounds_.step()); }, kSyncLimit,
                                        absl::StrCat("that the survivors serve step ", rounds_.step())));
  FaultOutcome outcome;
  outcome.ran = true;
  outcome.mended_seconds = mended.value_or(struck) - struck;
  outcome.recovered_seconds = rounds_.AllServedAt(rounds_.step()) - struck;
  for (const SyncSample& failure : cast_.Failures(blown_step)) {
    const double after = std::max(failure.recorded - struck, 0.0);
    // The first report is the time when the loss was noticed.
    if (outcome.reasons.empty() || after < outcome.declared_seconds) outcome.declared_seconds = after;
    outcome.reasons.push_back(absl::StrCat(failure.replica, " ", failure.result));
  }
  if (sync_case_.fault.target == "receiver") cast_.Remove(victim);  // a stopped process would not leave by itself
  SYNCOPATE_RETURN_IF_ERROR(rounds_.SyncOnce().status());           // syncs must still work
  SYNCOPATE_ASSIGN_OR_RETURN(outcome.healthy, AllHealthy());
  return outcome;
}

absl::Status FaultBench::Arm(const std::string& victim) {
  cast_.ForgetSayings();
  cast_.Expend(victim);
  if (!FallsByItself()) return absl::OkStatus();
  const bool midway = sync_case_.fault.stage == "transfer";
  const json strike = {{"do", "strike"},
                       {"stage", sync_case_.fault.stage},
                       {"signal", killed() ? SIGKILL : SIGSTOP},
                       {"after_seconds", midway ? transfer_seconds_ / 2 : 0.0}};
  return cast_.Ask(victim, strike, kAnswerLimit).status();
}

absl::StatusOr<double> FaultBench::AwaitBlow(const std::string& victim) {
  const std::string witness = FallsByItself() ? victim : rounds_.Receivers().front();
  std::optional<double> at;
  auto seen = [&] {
    at = FallsByItself() ? cast_.SaidAt(witness, "struck") : cast_.SaidAt(witness, "at", sync_case_.fault.stage);
    return at.has_value();
  };
  SYNCOPATE_RETURN_IF_ERROR(cast_.Await(seen, kSyncLimit, absl::StrCat("the blow to ", victim)));
  if (!FallsByItself()) cast_.Signal(victim, killed() ? SIGKILL : SIGSTOP);
  return *at;
}

absl::StatusOr<std::optional<double>> FaultBench::Mend(const std::string& victim) {
  if (sync_case_.fault.target == "receiver") {
    rounds_.RemoveLast();
    return std::nullopt;
  }
  if (sync_case_.fault.target == "source") {
    SYNCOPATE_RETURN_IF_ERROR(RestartSources(victim));
  } else if (killed()) {
    SYNCOPATE_RETURN_IF_ERROR(cast_.RestartSynchronizer());
  } else {
    SYNCOPATE_RETURN_IF_ERROR(cast_.Idle(kStopped));
    cast_.Signal(victim, SIGCONT);
  }
  const double now = absl::ToDoubleSeconds(Clock::Real()->Now() - absl::UnixEpoch());
  if (sync_case_.fault.target == "source") SYNCOPATE_RETURN_IF_ERROR(rounds_.PublishNext());
  return now;
}

// A trainer restarts as a whole, in a new epoch, when the loss of a rank has been noticed, or when the sync did not
// need that rank any more.
absl::Status FaultBench::RestartSources(const std::string& victim) {
  const int64_t step = rounds_.step();
  auto noticed = [&] { return !cast_.Failures(step).empty() || cast_.Ended(victim) || rounds_.AllServe(step); };
  SYNCOPATE_RETURN_IF_ERROR(cast_.Await(noticed, kSyncLimit, "that the loss of a source is noticed"));
  for (const std::string& source : rounds_.Sources()) cast_.Remove(source);
  return cast_.StartSources();
}

absl::StatusOr<bool> FaultBench::AllHealthy() {
  std::vector<std::string> names = rounds_.Sources();
  const std::vector<std::string> receivers = rounds_.Receivers();
  names.insert(names.end(), receivers.begin(), receivers.end());
  bool healthy = true;
  for (const std::string& name : names) {
    SYNCOPATE_ASSIGN_OR_RETURN(json answer, cast_.Ask(name, {{"do", "check"}}, kAnswerLimit));
    healthy = healthy && FlagIn(answer, "healthy");
  }
  return healthy;
}

}  // namespace syncopate::bench
