#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/policy_version.h"
#include "syncopate/v1/records.pb.h"
#include "tools/records/step_record.h"
#include "tools/report/series.h"

namespace syncopate::report {

// The part of a run's history that the page shows, of a finished or a running run. Bounded: series have a maximum
// number of points, and the newest kMaxEvaluations evaluations are kept, the newest kMaxSampledEvaluations with
// samples, besides the first. Plain state, no lock; page/page.js reads the result of ToJson.
class RunHistory {
 public:
  static constexpr size_t kMaxEvaluations = 2048;
  static constexpr size_t kMaxSampledEvaluations = 256;  // besides the first
  static constexpr size_t kMaxRollouters = 16;           // rollouters whose versions are drawn
  static constexpr size_t kMaxSampleBytes = 4096;        // of one text; longer ones are cut

  struct Checkpoints {
    int64_t failed = 0;
    std::string error = {};  // why the newest one could not be saved; "" if it was saved
    std::string best = {};   // the one with the best evaluation, which can be exported; "": none yet
    double best_reward = 0;
  };
  // The part that does not change while it is shown, or is replaced as a whole.
  struct Description {
    std::string name;
    std::string folder;
    std::string status;  // "running", "completed", ...
    std::string reason;
    std::vector<std::string> log;  // of a failed run: the end of the failed process's log
    Checkpoints checkpoints;
    int64_t steps_total = 0;                                  // 0: unknown
    std::vector<std::pair<std::string, std::string>> config;  // key, value
    nlohmann::json summary = nlohmann::json::object();        // summary.json
    std::vector<std::string> warnings;                        // about files that could not be read
  };

  void SetDescription(Description description) { description_ = std::move(description); }
  Description* description() { return &description_; }

  // Records must come in the order of metrics.jsonl. A step or an evaluation that a newer epoch repeats replaces the
  // older one and all that came after it.
  void AddRecord(const records::StepRecord& record);
  // One receiver's part of a successful weight sync; times in seconds, 0 for phases that did not run.
  struct Sync {
    PolicyVersion version;
    double stage = 0, prepare = 0, transfer = 0, verify = 0, install = 0, total = 0;
  };
  void AddSync(const Sync& sync);
  // The time for which the install of a version stopped a decode loop.
  void AddPause(const PolicyVersion& version, double seconds);
  // `who` ("rollouter-0", "trainer") has begun to serve, or has made, the version of `step`.
  void AddVersion(const std::string& who, double unix_seconds, int64_t step);
  // Adds an entry of an event log if it is one of the above; other entries are ignored. Call in order of time.
  void AddEvent(const v1::Event& event);

  // The part of the history that a page already has: the query of its poll.
  struct Have {
    int64_t step_span = 0, sync_span = 0, version_span = 0;
    size_t steps = 0, syncs = 0, versions = 0;
    uint64_t evaluations_revision = 0;
  };
  nlohmann::json ToJson(const Have& have) const;
  nlohmann::json ToJson() const { return ToJson(Have()); }

 private:
  struct Evaluation {
    int64_t epoch = 0;
    int64_t step = 0;
    std::optional<double> reward_mean;
    std::optional<double> exact;
    int64_t prompts = 0;
    std::map<std::string, double>
        figures;  // "part:NAME", "file:NAME", "source:NAME" and "tokens:mean", "tokens:min", ...
    std::vector<records::SampleAnswer> samples;
  };
  struct Alarm {
    std::string name;
    int64_t from = 0;           // step
    std::optional<int64_t> to;  // nullopt: still raised
  };

  int64_t SyncPlace(const PolicyVersion& version);
  void AddEvaluation(const records::StepRecord& record);
  void NoteAlarms(const records::StepRecord& record);
  nlohmann::json EvaluationsJson() const;
  nlohmann::json SamplesJson() const;

  Description description_;
  Series steps_, syncs_, versions_;
  std::map<std::string, int64_t> version_now_;  // keyed by who
  double first_record_seconds_ = 0;             // unix time of the oldest step; 0: unknown
  std::optional<double> first_seconds_;         // the origin of versions_, whose places are milliseconds since then
  long long last_version_ms_ = 0;
  std::vector<Evaluation> evaluations_;  // by step
  uint64_t evaluations_revision_ = 1;    // increases with each change
  std::vector<Alarm> alarms_;
  int64_t last_step_ = -1;
  int64_t sync_epoch_ = 0;
  int64_t last_sync_step_ = 0;
};

}  // namespace syncopate::report
