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

// Judges a run by the files that it left on disk, after whatever was done to its processes. It checks those invariants
// of a run (I1 to I15, see CheckRun) that the trainer's log, its checkpoints, the event logs, metrics.jsonl and
// summary.json can decide.
//
// The surviving history is that of the log: its takes name, for each step, the groups that were trained and the epoch
// that decided the step. A line of metrics.jsonl belongs to the surviving history unless an older epoch than that of
// the step's take wrote it. Such a line comes from a trainer that had lost the run without knowing it; it is only
// counted.
namespace syncopate::testing {

// The contents of a run directory. Plain data; a test may forge one.
struct RunHistory {
  // One training step as metrics.jsonl tells it.
  struct StepLine {
    PolicyVersion version;  // the version that the step made
    bool is_replay = false;
    // The digest of the weights after the step. Builds that wrote no `published_digest` put the digest of the published
    // weights here, if any were published: such lines have "", and are not compared.
    std::string weights_digest;
    int64_t tokens = 0;
    int64_t staleness_max = 0;
  };
  struct Checkpoint {
    PolicyVersion version;
    trainer::DataState data;
  };
  // A version that a daemon published or installed.
  struct Served {
    std::string daemon;
    PolicyVersion version;
    std::string digest;  // "" for a version that was only relabelled
  };
  struct Summary {
    std::string status;
    int64_t steps = 0;
    int64_t violations = 0;
    int64_t acked = 0;
    int64_t trained = 0;
    int64_t failed = 0;  // number of groups that were given up
    int64_t trained_tokens = 0;
  };

  std::vector<trainer::LogRecord> log;  // in the order of writing
  uint64_t first_record = 1;            // number of log[0]; above 1 if the log was pruned
  std::vector<StepLine> steps;          // in the order of the file
  // lines of metrics.jsonl that are no JSON, as a crash or a full disk leaves them
  int64_t torn_lines = 0;
  std::vector<Checkpoint> checkpoints;  // checkpoints that verify, lowest step first
  std::vector<std::string> damaged_checkpoints;
  std::vector<Served> published;  // in order of writing; event logs of killed daemons lack their end
  std::vector<Served> installed;  // in order of writing, with the same exception
  std::optional<Summary> summary;
};

// The settings that the run was configured with.
struct RunRules {
  int64_t batch_groups = 16;
  int64_t samples = 16;  // number of samples in a group
  int64_t max_staleness = 4;
  bool masks_beyond_bound =
      false;              // staleness.on_deadline is mask: tokens beyond the bound are not trained, their answers are
  bool data_end = false;  // data.max_groups is set: the last batch may be smaller
  bool reports_may_be_lost = false;  // the disk of metrics.jsonl was full: lines are missing, and the run goes on
};

// The verdict. Each of `violations` is a sentence that begins with the number of the invariant.
struct RunFindings {
  std::vector<std::string> violations = {};
  int64_t accepted = 0;                               // groups that were made durable, hence all that were acknowledged
  std::map<int64_t, int64_t> accepted_by_epoch = {};  // of `accepted`, by the epoch that made their newest token
  int64_t trained = 0;                                // of `accepted`: groups in takes
  std::map<std::string, int64_t> dropped = {};        // of `accepted`: dropped groups, by reason
  int64_t queued = 0;                                 // of `accepted`: groups neither taken nor dropped
  int64_t reissued = 0;                               // of `accepted`: groups with an attempt above the first
  int64_t steps = 0;                                  // steps taken
  int64_t epochs = 0;                                 // epochs that took a step
  int64_t replayed_lines = 0;
  int64_t foreign_lines = 0;  // lines of trainers that had lost the run

  bool clean() const { return violations.empty(); }
  std::string ToString() const;  // the counts, then a line for each violation
  friend void PrintTo(const RunFindings& findings, std::ostream* out) { *out << findings.ToString(); }
};

// Reads `run_dir` without changing it. The run may be alive, as long as it does not delete a checkpoint at that moment.
// If `checkpoint_dir` is empty, the checkpoints are under run_dir. Errors: those of the disk, and those of a log that
// cannot be read at all.
absl::StatusOr<RunHistory> ReadRunHistory(const std::string& run_dir, const std::string& checkpoint_dir = "");

// Checks these invariants. I1: every accepted group is taken, dropped with a reason, or may still be trained;
// checkpoints agree. I2: no group is in two takes, and each step has one take. I3: the version that a rollouter serves
// never decreases. I4: no trained token is beyond the bound, no group is trained later than the gate admitted it for,
// and no group has a token older than that, also if a second attempt answered it. I5: a version has one digest, at the
// trainer and at every rollouter. I8: a step that was repeated after a restore has the weights that it had at first.
// I10: the newest checkpoint verifies. I12: groups are whole. I15: metrics.jsonl and summary.json agree with the log,
// and the acknowledged groups are those in the log. Pure.
RunFindings CheckRun(const RunHistory& history, const RunRules& rules);

// The digests of the steps of the surviving history, by step.
std::map<int64_t, std::string> SurvivingDigests(const RunHistory& history);

}  // namespace syncopate::testing
