#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/sync/bench_cast.h"
#include "bench/sync/sync_case.h"
#include "bench/sync/sync_result.h"

namespace syncopate::bench {

inline constexpr absl::Duration kSyncLimit = absl::Minutes(1);
inline constexpr absl::Duration kAnswerLimit = absl::Seconds(30);

// Makes one sync after the other: counts the steps, and keeps the list of replicas that should take part. Owned by the
// cast's thread.
class SyncRounds {
 public:
  // All are borrowed. `progress` may be null.
  SyncRounds(const SyncCase& sync_case, BenchCast* cast, const std::function<void(const std::string&)>& progress);

  void ReportProgress(const std::string& what) const;
  // Publishes the next step, after a calm time, and waits for its commit on all replicas.
  absl::StatusOr<std::vector<SyncSample>> SyncOnce();
  // Publishes the next step and returns.
  absl::Status PublishNext();
  int64_t step() const { return step_; }  // the last one published

  bool AllServe(int64_t step) const;
  // The time when the last replica served `step`; all must serve it.
  double AllServedAt(int64_t step) const;

  const std::vector<int32_t>& replicas() const { return replicas_; }
  void Add(int32_t replica) { replicas_.push_back(replica); }
  void RemoveLast() { replicas_.pop_back(); }

  std::vector<std::string> Receivers() const;
  std::vector<std::string> Sources() const;

 private:
  const SyncCase& sync_case_;
  BenchCast& cast_;
  const std::function<void(const std::string&)>& progress_;
  std::vector<int32_t> replicas_;
  int64_t step_ = 0;
};

}  // namespace syncopate::bench
