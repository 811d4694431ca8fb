#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/manifest.h"
#include "synchronizer/loop/control_plane.h"
#include "synchronizer/plan/sync_plan.h"

namespace syncopate::bench {

// A run of any size, of which only the decisions are real.
struct FleetCase {
  Manifest manifest;
  int32_t trainer_ranks = 8;
  int32_t replicas = 64;
  int32_t tensor_parallel = 1;
  std::string transport = "grpc";            // or "nccl"
  std::string source_layout = "units:fp32";  // without the number of ranks; "units" is what a trainer has

  int32_t receivers() const { return replicas * tensor_parallel; }
  int32_t members() const { return trainer_ranks + receivers(); }
};

// What one weight sync of all members takes. Bytes of messages are those of their protobuf encoding.
struct FleetFigures {
  double layout_seconds = 0;  // both layouts
  double plan_seconds = 0;    // a plan of them; each member makes its own, once for each pair of layouts
  int64_t plan_copies = 0;    // messages of weights to one replica
  int64_t plan_buckets = 0;
  double join_seconds = 0;     // the synchronizer's decisions for all hellos
  double publish_seconds = 0;  // from the publication to its last command, its decisions only
  int64_t commands = 0;        // from the synchronizer
  int64_t command_bytes = 0;
  int64_t largest_command_bytes = 0;
  int64_t reports = 0;  // to it
  int64_t report_bytes = 0;
  int64_t queued_bytes = 0;  // the most that commands took at once before members had them
  int64_t heap_bytes = 0;    // memory of the synchronizer's state, members and plans included, after the sync
  int64_t served = 0;        // replicas that serve the version
};

// The real ControlPlane and the real plan, with members that do at once what they are told, and no bytes of weights.
// Single-threaded. Time is a number, so the figures do not depend on waiting.
class FleetWorld {
 public:
  // Errors of BuildLayout and SyncPlan; INVALID_ARGUMENT reason BAD_CASE for sizes below one or another transport.
  static absl::StatusOr<FleetFigures> Measure(const FleetCase& fleet);

 private:
  FleetWorld(const FleetCase& fleet, std::shared_ptr<const Manifest> manifest, synchronizer::SyncPlan plan,
             synchronizer::ControlPlane plane);

  absl::Status JoinAll();
  absl::Status PublishOne();
  synchronizer::Hello MakeHello(synchronizer::SessionId session) const;
  MemberId GetMember(synchronizer::SessionId session) const;
  bool IsSource(synchronizer::SessionId session) const { return session <= fleet_.trainer_ranks; }
  // Carries out all actions, and reports what members would report, until nothing is left.
  void Run(double* seconds);
  void Obey(synchronizer::SessionId session, const synchronizer::Command& command);
  void Report(synchronizer::SessionId session, synchronizer::SyncStage stage, int64_t attempt);

  const FleetCase& fleet_;
  const std::shared_ptr<const Manifest> manifest_;
  const synchronizer::SyncPlan plan_;
  synchronizer::ControlPlane plane_;
  absl::Time now_ = absl::UnixEpoch();
  bool counts_ = false;  // messages of the sync, not of the joins
  std::vector<std::pair<synchronizer::SessionId, synchronizer::SyncReport>> reports_;
  FleetFigures figures_;
};

}  // namespace syncopate::bench
