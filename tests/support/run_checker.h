#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/policy_version.h"
#include "trainer/data/records.h"

// Judges a run by what it left on disk, after whatever was done to its processes: those of a run's invariants (I1 to
// I15, see CheckRun) that the trainer's log, its checkpoints, the event logs, metrics.jsonl and summary.json can
// decide.
//
// The surviving history is the log's: its takes name, for each step, the groups that were trained and the epoch that
// decided it. A line of metrics.jsonl belongs to it unless it was written by an older epoch than the take of its step:
// such a line is of a trainer that had lost the run without knowing, and only counted.
namespace syncopate::testing {

// What is in a run directory. Plain; a forged one is as good as one that was read.
struct RunHistory {
  // One training step as metrics.jsonl tells it.
  struct StepLine {
    PolicyVersion version;  // that the step made
    bool is_replay = false;
    // Digest of the weights after the step. Builds that wrote no `published_digest` put the digest of what was
    // published here, where something was: such lines have "", and are not compared.
    std::string weights_digest;
    int64_t tokens = 0;
    int64_t staleness_max = 0;
  };
  struct Checkpoint {
    PolicyVersion version;
    trainer::DataState data;
  };
  // A version that a daemon published, or took into use.
  struct Served {
    std::string daemon;
    PolicyVersion version;
    std::string digest;  // "" for one that was only relabelled
  };
  struct Summary {
    std::string status;
    int64_t steps = 0;
    int64_t violations = 0;
    int64_t acked = 0;
    int64_t trained = 0;
    int64_t failed = 0;  // groups given up
    int64_t trained_tokens = 0;
  };

  std::vector<trainer::LogRecord> log;  // in order
  uint64_t first_record = 1;            // number of log[0]; above 1 if the log was pruned
  std::vector<StepLine> steps;          // in the order of the file
  int64_t torn_lines = 0;               // of metrics.jsonl: no JSON, as a crash or a full disk leaves them
  std::vector<Checkpoint> checkpoints;  // those that verify, lowest first
  std::vector<std::string> damaged_checkpoints;
  std::vector<Served> published;  // in order of writing; event logs of killed daemons lack their end
  std::vector<Served> installed;  // the same
  std::optional<Summary> summary;
};

// What the run was configured to keep.
struct RunRules {
  int64_t batch_groups = 16;
  int64_t samples = 16;  // of a group
  int64_t max_staleness = 4;
  bool masks_beyond_bound =
      false;              // staleness.on_deadline is mask: tokens beyond the bound are not trained, their answers are
  bool data_end = false;  // data.max_groups is set: the last batch may be smaller
  bool reports_may_be_lost = false;  // the disk of metrics.jsonl was full: that costs lines, never the run
};

// The verdict. `violations` are sentences that begin with the invariant's number.
struct RunFindings {
  std::vector<std::string> violations = {};
  int64_t accepted = 0;                               // groups that were made durable, hence all that were acknowledged
  std::map<int64_t, int64_t> accepted_by_epoch = {};  // by the epoch that their newest token was made in
  int64_t trained = 0;                                // of them, in takes
  std::map<std::string, int64_t> dropped = {};        // of them, by reason
  int64_t queued = 0;                                 // of them, neither yet
  int64_t reissued = 0;                               // of them, with an attempt above the first
  int64_t steps = 0;                                  // taken
  int64_t epochs = 0;                                 // that took a step
  int64_t replayed_lines = 0;
  int64_t foreign_lines = 0;  // of trainers that had lost the run

  bool clean() const { return violations.empty(); }
  std::string ToString() const;  // the counts, then a line for each violation
  friend void PrintTo(const RunFindings& findings, std::ostream* out) { *out << findings.ToString(); }
};

// Reads `run_dir` without changing it; also of a run that is alive, if it does not delete a checkpoint just then.
// `checkpoint_dir` empty: checkpoints under run_dir. Errors: the disk's, and those of a log that cannot be read at all.
absl::StatusOr<RunHistory> ReadRunHistory(const std::string& run_dir, const std::string& checkpoint_dir = "");

// I1 every accepted group is taken, dropped with a reason, or may still be trained; checkpoints say the same. I2 no
// group is in two takes, and each step has one take. I3 the version that a rollouter serves never goes back. I4 no
// trained token is beyond the bound, no group is trained later than the gate admitted it for, and none holds a token
// older than that: also one that a second attempt answered. I5 a version has one digest, at the trainer and at every rollouter. I8 a step that
// was repeated after a restore has the weights it had at first. I10 the newest checkpoint verifies. I12 groups are
// whole. I15 metrics.jsonl and summary.json agree with the log; what was acknowledged is what the log holds. Pure.
RunFindings CheckRun(const RunHistory& history, const RunRules& rules);

// The digests of the surviving history's steps, by step.
std::map<int64_t, std::string> SurvivingDigests(const RunHistory& history);

}  // namespace syncopate::testing
