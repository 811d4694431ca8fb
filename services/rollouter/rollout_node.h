#pragma once

#include <prometheus/collectable.h>
#include <prometheus/registry.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/daemon/card_account.h"
#include "base/event_recorder.h"
#include "base/identity.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/trajectory.h"
#include "rollouter/engine/engine_loop.h"
#include "rollouter/reward/scorer.h"
#include "rollouter/trajectory/play_assembly.h"
#include "rollouter/trajectory/stop_rules.h"
#include "services/member/member_client.h"
#include "services/rollouter/replica_leader.h"
#include "services/rollouter/rollout_device.h"
#include "services/rollouter/rollout_service.h"
#include "services/rollouter/work_client.h"
#include "services/telemetry/rollout_metrics.h"
#include "synchronizer/member/sync_participant.h"
#include "synchronizer/transport/weight_receiver.h"

namespace syncopate::rollouterd {

// What a rollouter knows to have of its GPU's memory, by owner: all but its context and libraries.
daemon::CardOwners ListOwnParts(const rollouter::EngineStatus& engine);

// One rollouter without its process: the engine, its gRPC service, the receiver of weights, the membership and the
// client for work. Weights come by weight sync alone; the synchronizer says where the trainer is.
//
//   auto node = RolloutNode::Create(options, registry)      engine and service; nothing talks yet
//   server = Server::Start(..., {node->service()})
//   node->Join(server address, metrics address)             from here on it works by itself
//   ... until a stop is requested, or node->CheckAlive() fails
//   node->Leave(grace);  server->Stop(...);                 then free the node
class RolloutNode {
 public:
  struct Options {
    rollouter::EngineLoop::Options engine;
    MemberId member = {};
    MemberSecret secret = {};   // of the member's incarnation
    std::string run_id = {};    // "": the synchronizer's
    std::string run_name = {};  // names the model in vLLM's metrics
    std::string synchronizer_address = {};
    rollouter::LeaseBook::Options leases = {};
    rollouter::StopRules stops = {};                          // of the answers to leases
    std::optional<rollouter::PlayRules> play = std::nullopt;  // how the samples of leases play
    absl::Duration heartbeat = absl::Seconds(1);              // the trainer hears from this node at least this often
    int64_t report_tokens = 0;                                // see WorkClient::Options
    std::string build = {};                                   // version of the binary
    absl::Duration lost_after = absl::InfiniteDuration();     // a node without a synchronizer for so long ends
    int64_t allowed_lag = 1;           // ready while it serves a version at most this many steps behind the newest
    std::set<std::string> cards = {};  // see WorkClient::Options
    EventRecorder* events = nullptr;   // borrowed; null: not recorded
    std::shared_ptr<const auth::TransportSecurity> security = nullptr;  // of its outgoing connections; null: plaintext
    rollouter::Scorer::Options scoring = {};                            // its remote scorers must outlive the node
    // The device, made for the engine's model; null: the CPU.
    std::shared_ptr<RolloutDevice> device = nullptr;
    // For rank 0 of a replica of several ranks: the layout of the replica's weights, and the leader of the other ranks,
    // which must outlive the node. `device` must have a leading backend then.
    std::string layout = {};
    ReplicaLeader* leader = nullptr;
  };

  // Allocates the KV cache and the weights and starts the engine. Errors of EngineLoop, Scorer and WorkClient.
  static absl::StatusOr<std::unique_ptr<RolloutNode>> Create(const Options& options, prometheus::Registry& registry);
  // Calls Leave with no grace. The server must have been stopped.
  ~RolloutNode();
  RolloutNode(const RolloutNode&) = delete;
  RolloutNode& operator=(const RolloutNode&) = delete;

  grpc::Service* service() { return &service_; }
  // The metrics of the engine and the work client. May outlive the node.
  std::shared_ptr<const prometheus::Collectable> metrics() const { return metrics_; }

  // Joins the run in the background; `address` is where the other members reach this node. Call once, when the service
  // is served.
  absl::Status Join(const std::string& address, const std::string& metrics_address,
                    const std::string& endpoint_address = "");

  // OK while this process can go on. Else why not: the synchronizer refuses it for good or is lost, its weights have
  // changed in memory (reason WEIGHTS_DAMAGED), the engine has failed, or the worker of users' Python has no reward
  // of the run's name.
  absl::Status CheckAlive() const;
  // Whether the node can work now: readiness.h.
  absl::Status CheckReady() const;
  // Whether the engine's thread moves: it waits, or its present round has taken less than a second.
  bool Moves() const;
  // Whether the synchronizer has said that the run is complete.
  bool run_completed() const;

  // Leaves the synchronizer, takes no new work, finishes and submits running work for about half of `grace`, hands the
  // rest back, and stops the engine, which ends every call that waits for it. Blocks for at most `grace`. Idempotent.
  void Leave(absl::Duration grace);

  rollouter::EngineLoop& engine() { return *engine_; }
  WorkClient& work() { return *work_; }

 private:
  RolloutNode(const Options& options, std::shared_ptr<rollouter::EngineLoop> engine,
              std::unique_ptr<rollouter::Scorer> scorer, std::shared_ptr<WorkClient> work,
              prometheus::Registry& registry);

  // Records why this process cannot go on.
  void Refuse(const absl::Status& why);

  const Options options_;                                // includes the device
  const std::shared_ptr<rollouter::EngineLoop> engine_;  // shared with metrics_ only
  const std::unique_ptr<rollouter::Scorer> scorer_;
  const std::shared_ptr<WorkClient> work_;
  RolloutService service_;
  const std::unique_ptr<synchronizer::WeightTarget> joint_target_;  // null: the target is the engine itself
  synchronizer::WeightReceiver receiver_;
  member::ReceiverParticipant participant_;
  const std::shared_ptr<const prometheus::Collectable> metrics_;
  std::unique_ptr<member::MemberClient> member_;  // null before Join
  mutable Mutex mutex_;
  synchronizer::Directory directory_ ABSL_GUARDED_BY(mutex_);  // the latest directory
  absl::Status refused_ ABSL_GUARDED_BY(mutex_);               // the first reason of Refuse
};

}  // namespace syncopate::rollouterd
