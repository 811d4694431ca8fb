#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "bench/control/control_case.h"
#include "bench/control/control_hosts.h"
#include "bench/control/control_result.h"
#include "bench/control/member_fleet.h"
#include "syncopate/v1/synchronizer.grpc.pb.h"

namespace syncopate::bench {

// The parts of `syncopate bench control` in which many rollouters join a newly started synchronizer. All pointers are
// borrowed. Errors of MemberFleet and ControlHosts, and of the calls to the synchronizer.
class MembersBench {
 public:
  MembersBench(const ControlCase& control_case, ControlHosts* hosts,
               const std::function<void(const std::string&)>& progress, ControlResult* result)
      : case_(control_case), hosts_(*hosts), progress_(progress), result_(*result) {}

  // Measures what members cost while they only send heartbeats, and how long a scrape takes then.
  absl::Status MeasureAtRest();
  // Measures how long after a kill and a restart all members are back.
  absl::Status MeasureRestart();

 private:
  absl::Status Join();
  // The number of members that the synchronizer counts as alive; 0 if the call fails.
  int64_t Alive();
  absl::Status AwaitAlive(int64_t members, absl::Duration limit);
  absl::Status MeasureScrapes(bool members);
  void ReportProgress(const std::string& what) {
    if (progress_ != nullptr) progress_(what);
  }

  const ControlCase& case_;
  ControlHosts& hosts_;
  const std::function<void(const std::string&)>& progress_;
  ControlResult& result_;
  std::unique_ptr<v1::SynchronizerService::Stub> stub_;
  std::unique_ptr<MemberFleet> fleet_;
};

}  // namespace syncopate::bench
