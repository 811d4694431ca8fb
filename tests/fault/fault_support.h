#pragma once

#include <gmock/gmock.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/rpc/unary.h"
#include "syncopate/v1/synchronizer.grpc.pb.h"
#include "syncopate/v1/trainer.grpc.pb.h"
#include "tests/support/dice.h"
#include "tests/support/run_checker.h"
#include "tests/support/run_harness.h"

// What the fault tests share: a small run that goes on until it is stopped, calls to its daemons, random but repeatable
// moments, and the verdict at the end.
namespace syncopate::testing {

// The overrides for a run of small steps that ends when the test stops it. Its whole history is kept, for the checker.
// Generation takes most of the time, so that a rollouter that is killed or stopped holds leases.
std::vector<std::string> EndlessRun(std::vector<std::string> more = {});
RunRules RulesOfEndlessRun();

// The process of this run whose command line contains `text`; 0 if there is none.
pid_t FindProcess(const RunHarness& run, const std::string& text);

// Calls the daemons of one run at their present addresses. Every call is answered or fails within a few seconds.
class RunWatch {
 public:
  explicit RunWatch(const RunHarness* run) : run_(run) {}

  absl::StatusOr<v1::TrainerServiceGetStatusResponse> Trainer() const;
  absl::StatusOr<v1::SynchronizerServiceGetStatusResponse> Synchronizer() const;
  absl::StatusOr<std::vector<v1::MemberStatus>> Members() const;
  // Return one rollouter: Stream as the trainer sees its stream, the other as the synchronizer lists it; NOT_FOUND.
  absl::StatusOr<v1::RollouterView> Stream(int64_t rollouter) const;
  absl::StatusOr<v1::MemberStatus> Member(int64_t rollouter) const;

  int64_t Step() const;  // the trainer's step; -1 if the trainer does not answer
  // Waits until the trainer has made `steps` more steps, without those that it repeats after a restore;
  // DEADLINE_EXCEEDED says what was missing.
  absl::Status AwaitMoreSteps(int64_t steps, absl::Duration timeout = kPatience) const;
  // Waits for a random moment: a random number of steps and of round trips later.
  absl::Status AwaitRandomMoment(Dice& dice) const;
  // Waits until this rollouter has a stream from a process other than `not_by` and had a group accepted. Returns the
  // incarnation of that process.
  absl::StatusOr<std::string> AwaitWork(int64_t rollouter, const std::string& not_by = "",
                                        absl::Duration timeout = kPatience) const;
  // Ends the run in order, with a last checkpoint.
  absl::Status Stop() const;

 private:
  bool HasPublished(int64_t epoch) const;

  const RunHarness* const run_;
};

// The checker's verdict on a run that has ended, or whose trainer has.
RunFindings Judge(const RunHarness& run, const RunRules& rules = RulesOfEndlessRun());

// Usage: EXPECT_THAT(Judge(run), IsClean())
MATCHER(IsClean, "violates nothing") { return arg.clean(); }

// Prints one measured figure to the log.
void Report(const std::string& what, absl::Duration time);

// Seconds since an earlier moment of the steady clock.
class Stopwatch {
 public:
  Stopwatch();
  absl::Duration Elapsed() const;

 private:
  const absl::Time begin_;
};

}  // namespace syncopate::testing
