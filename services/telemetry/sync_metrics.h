#pragma once

#include <cstdint>
#include <string>

#include "services/telemetry/metric_names.h"
#include "synchronizer/messages.h"
#include "synchronizer/plan/payload.h"

namespace syncopate::telemetry {

// The durations and results of weight syncs, measured by the synchronizer: one sample per receiver and attempt.
class SyncMetrics {
 public:
  explicit SyncMetrics(prometheus::Registry& registry);

  struct Sync {
    std::string transport;  // "inproc", "ipc", "nccl", "grpc"
    std::string result;     // "ok", "relabelled", or the reason of the error
    synchronizer::StageSeconds seconds = {};
    synchronizer::PayloadBytes bytes = {};
    double ended_unix_seconds = 0;
  };
  // A phase that did not run leaves no sample in its histogram. An unknown reason counts as "failed".
  void Record(const Sync& sync);

  // A rehearsal with one receiver has ended.
  void RecordRehearsal(bool connected) { rehearsals_.Increment(connected ? "connected" : "not_connected"); }

  void SetNewest(const PolicyVersion& version) { newest_.Set(version); }
  void SetMembers(int64_t trainers, int64_t rollouters);  // those alive

 private:
  prometheus::Family<prometheus::Histogram>& durations_;
  LabelledCounter bytes_;
  LabelledCounter results_;
  LabelledCounter rehearsals_;
  prometheus::Gauge& last_success_;
  prometheus::Gauge& trainers_;
  prometheus::Gauge& rollouters_;
  PolicyVersionMetric newest_;
};

}  // namespace syncopate::telemetry
