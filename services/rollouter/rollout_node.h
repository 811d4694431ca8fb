#pragma once

#include <prometheus/collectable.h>
#include <prometheus/registry.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/event_recorder.h"
#include "base/identity.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/trajectory.h"
#include "rollouter/engine/engine_loop.h"
#include "rollouter/reward/scorer.h"
#include "services/member/member_client.h"
#include "services/rollouter/replica_leader.h"
#include "services/rollouter/rollout_device.h"
#include "services/rollouter/rollout_service.h"
#include "services/rollouter/work_client.h"
#include "services/telemetry/rollout_metrics.h"
#include "synchronizer/member/sync_participant.h"
#include "synchronizer/transport/weight_receiver.h"

namespace syncopate::rollouterd {

// One rollouter without its process: the engine, the service over it, the receiver of weights, the membership and the
// client for work. Weights come by weight sync alone; the trainer is found through the synchronizer.
//
//   auto node = RolloutNode::Create(options, registry)      engine and service; nothing talks yet
//   server = Server::Start(..., {node->service()})
//   node->Join(server address, metrics address)             from here on it works by itself
//   ... until somebody wants it to end, or node->CheckAlive() fails
//   node->Leave(grace);  server->Stop(...);                 then free the node
class RolloutNode {
 public:
  struct Options {
    rollouter::EngineLoop::Options engine;
    MemberId member = {};
    MemberSecret secret = {};   // of its incarnation
    std::string run_id = {};    // "" takes the one that the synchronizer says
    std::string run_name = {};  // names the model in vLLM's metrics
    std::string synchronizer_address = {};
    rollouter::LeaseBook::Options leases = {};
    absl::Duration heartbeat = absl::Seconds(1);           // the trainer hears from this node at least this often
    std::string build = {};                                // version of the binary
    absl::Duration lost_after = absl::InfiniteDuration();  // without a synchronizer for so long it cannot go on
    int64_t allowed_lag = 1;          // it is ready while it serves a version at most so many steps behind the newest
    EventRecorder* events = nullptr;  // borrowed; null: not recorded
    std::shared_ptr<const auth::TransportSecurity> security = nullptr;  // of its connections to others; null: plaintext
    rollouter::Scorer::Options scoring = {};  // the remote scorers in it must outlive the node
    // Where it computes, made for the engine's model; null: on the CPU.
    std::shared_ptr<RolloutDevice> device = nullptr;
    // Of a replica of several ranks, of which this is rank 0: the layout of their weights, and what leads the others, which
    // must outlive the node. `device` has a leading backend then.
    std::string layout = {};
    ReplicaLeader* leader = nullptr;
  };

  // Allocates KV cache and weights and starts the engine. Errors of EngineLoop, Scorer and WorkClient.
  static absl::StatusOr<std::unique_ptr<RolloutNode>> Create(const Options& options, prometheus::Registry& registry);
  // Leaves with no grace. The server must have been stopped.
  ~RolloutNode();
  RolloutNode(const RolloutNode&) = delete;
  RolloutNode& operator=(const RolloutNode&) = delete;

  grpc::Service* service() { return &service_; }
  // What the engine and the work client count. May outlive the node.
  std::shared_ptr<const prometheus::Collectable> metrics() const { return metrics_; }

  // Joins the run in the background, reachable by the others at `address`. Call once, when the service is served.
  absl::Status Join(const std::string& address, const std::string& metrics_address);

  // Why this process cannot go on: the synchronizer will not have it any more or is lost, the engine has failed, or the
  // worker of users' Python has no reward of the run's name. OK while it can.
  absl::Status CheckAlive() const;
  // Whether it can work now: readiness.h.
  absl::Status CheckReady() const;
  // Whether the engine's thread moves: it waits, or has not been at one thing for long.
  bool Moves() const;
  // The synchronizer says that the run is complete.
  bool run_completed() const;

  // Says farewell to the synchronizer, takes nothing new, finishes and submits what runs for at most half of `grace`,
  // hands the rest back, and stops the engine, which ends every call that waits for it. Blocks for at most `grace`.
  // Idempotent.
  void Leave(absl::Duration grace);

  rollouter::EngineLoop& engine() { return *engine_; }
  WorkClient& work() { return *work_; }

 private:
  RolloutNode(const Options& options, std::shared_ptr<rollouter::EngineLoop> engine,
              std::unique_ptr<rollouter::Scorer> scorer, std::shared_ptr<WorkClient> work,
              prometheus::Registry& registry);

  const Options options_;                                // its device is there
  const std::shared_ptr<rollouter::EngineLoop> engine_;  // shared with metrics_ alone
  const std::unique_ptr<rollouter::Scorer> scorer_;
  const std::shared_ptr<WorkClient> work_;
  RolloutService service_;
  const std::unique_ptr<synchronizer::WeightTarget> joint_target_;  // null: the engine itself is the target
  synchronizer::WeightReceiver receiver_;
  member::ReceiverParticipant participant_;
  const std::shared_ptr<const prometheus::Collectable> metrics_;
  std::unique_ptr<member::MemberClient> member_;  // null before Join
  mutable Mutex mutex_;
  synchronizer::Directory directory_ ABSL_GUARDED_BY(mutex_);  // the latest
  absl::Status refused_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncopate::rollouterd
