#include "tests/fault/fault_support.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/uuid.h"

namespace syncopate::testing {
namespace {

constexpr absl::Duration kAnswerWithin = absl::Seconds(3);

}  // namespace

std::vector<std::string> EndlessRun(std::vector<std::string> more) {
  std::vector<std::string> overrides = {"run.steps=1000000",         "data.length=12",
                                        "rollout.max_new_tokens=13", "model.max_position_embeddings=32",
                                        "data.batch_groups=4",       "rollout.samples=8",
                                        "eval.every_steps=0",        "checkpoint.every_steps=10",
                                        "checkpoint.keep=1000",      "rollout.max_sequences=32"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  return overrides;
}

RunRules RulesOfEndlessRun() { return {.batch_groups = 4, .samples = 8, .max_staleness = 4}; }

pid_t FindProcess(const RunHarness& run, const std::string& text) {
  const std::vector<pid_t> ours = ProcessesNaming(run.run_dir());
  for (pid_t pid : ProcessesNaming(text)) {
    if (std::find(ours.begin(), ours.end(), pid) != ours.end()) return pid;
  }
  return 0;
}

absl::StatusOr<v1::TrainerServiceGetStatusResponse> RunWatch::Trainer() const {
  SYNCOPATE_ASSIGN_OR_RETURN(auto endpoint, run_->Endpoint("trainer", 0, 0, absl::ZeroDuration()));
  return Call<v1::TrainerService>(endpoint.grpc, &v1::TrainerService::Stub::GetStatus,
                                  v1::TrainerServiceGetStatusRequest(), kAnswerWithin);
}

absl::StatusOr<v1::SynchronizerServiceGetStatusResponse> RunWatch::Synchronizer() const {
  SYNCOPATE_ASSIGN_OR_RETURN(auto endpoint, run_->Endpoint("synchronizer", 0, 0, absl::ZeroDuration()));
  return Call<v1::SynchronizerService>(endpoint.grpc, &v1::SynchronizerService::Stub::GetStatus,
                                       v1::SynchronizerServiceGetStatusRequest(), kAnswerWithin);
}

absl::StatusOr<std::vector<v1::MemberStatus>> RunWatch::Members() const {
  SYNCOPATE_ASSIGN_OR_RETURN(auto endpoint, run_->Endpoint("synchronizer", 0, 0, absl::ZeroDuration()));
  SYNCOPATE_ASSIGN_OR_RETURN(auto response,
                             Call<v1::SynchronizerService>(endpoint.grpc, &v1::SynchronizerService::Stub::ListMembers,
                                                           v1::ListMembersRequest(), kAnswerWithin));
  return std::vector<v1::MemberStatus>(response.members().begin(), response.members().end());
}

absl::StatusOr<v1::RollouterView> RunWatch::Stream(int64_t rollouter) const {
  SYNCOPATE_ASSIGN_OR_RETURN(auto status, Trainer());
  const std::string name = absl::StrCat("rollouter-", rollouter);
  for (const v1::RollouterView& view : status.rollouters()) {
    if (view.replica_id() == name) return view;
  }
  return absl::NotFoundError(absl::StrCat("the trainer has no stream of ", name));
}

absl::StatusOr<v1::MemberStatus> RunWatch::Member(int64_t rollouter) const {
  SYNCOPATE_ASSIGN_OR_RETURN(auto members, Members());
  const std::string name = absl::StrCat("rollouter-", rollouter);
  for (const v1::MemberStatus& member : members) {
    if (member.member().replica_id() == name) return member;
  }
  return absl::NotFoundError(absl::StrCat("the synchronizer does not know ", name));
}

int64_t RunWatch::Step() const {
  auto status = Trainer();
  return status.ok() ? status->version().step() : -1;
}

// After a restore the trainer repeats the logged takes first and publishes nothing meanwhile.
bool RunWatch::HasPublished(int64_t epoch) const {
  auto status = Synchronizer();
  return status.ok() && status->newest().epoch() == epoch;
}

absl::Status RunWatch::AwaitMoreSteps(int64_t steps, absl::Duration timeout) const {
  int64_t from = -1;
  absl::StatusOr<v1::TrainerServiceGetStatusResponse> status;
  const bool there = Eventually(timeout, [&] {
    status = Trainer();
    if (!status.ok() || status->state() == "starting") return false;
    if (from < 0 && HasPublished(status->version().epoch())) from = status->version().step();
    return from >= 0 && status->version().step() >= from + steps;
  });
  if (there) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("no ", steps, " steps after step ", from, ": ",
                   status.ok() ? status->state() + "; " + status->explanation().detail() : status.status().ToString()));
}

absl::Status RunWatch::AwaitRandomMoment(Dice& dice) const {
  SYNCOPATE_RETURN_IF_ERROR(AwaitMoreSteps(dice.Between(1, 6)));
  for (int64_t left = dice.Between(0, 15); left > 0; --left) SYNCOPATE_RETURN_IF_ERROR(Trainer().status());
  return absl::OkStatus();
}

absl::StatusOr<std::string> RunWatch::AwaitWork(int64_t rollouter, const std::string& not_by,
                                                absl::Duration timeout) const {
  absl::StatusOr<v1::RollouterView> stream;
  const bool there = Eventually(timeout, [&] {
    stream = Stream(rollouter);
    return stream.ok() && stream->incarnation() != not_by && stream->accepted_groups() > 0;
  });
  if (there) return stream->incarnation();
  return absl::DeadlineExceededError(
      absl::StrCat("rollouter-", rollouter,
                   " got no work: ", stream.ok() ? stream->ShortDebugString() : stream.status().ToString()));
}

absl::Status RunWatch::Stop() const {
  SYNCOPATE_ASSIGN_OR_RETURN(auto endpoint, run_->Endpoint("trainer"));
  v1::StopRequest request;
  request.set_request_id(RandomUuid());
  return Call<v1::TrainerService>(endpoint.grpc, &v1::TrainerService::Stub::Stop, request, kAnswerWithin).status();
}

RunFindings Judge(const RunHarness& run, const RunRules& rules) {
  absl::StatusOr<RunHistory> history = ReadRunHistory(run.run_dir());
  if (!history.ok()) return RunFindings{.violations = {history.status().ToString()}};
  RunFindings findings = CheckRun(*history, rules);
  std::printf("%s\n", findings.ToString().c_str());
  return findings;
}

void Report(const std::string& what, absl::Duration time) {
  std::printf("%s: %s\n", what.c_str(), absl::FormatDuration(absl::Trunc(time, absl::Milliseconds(1))).c_str());
}

Stopwatch::Stopwatch() : begin_(Clock::Real()->Now()) {}
absl::Duration Stopwatch::Elapsed() const { return Clock::Real()->Now() - begin_; }

}  // namespace syncopate::testing
