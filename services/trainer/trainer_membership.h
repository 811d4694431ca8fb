#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/daemon/daemon.h"
#include "services/member/grpc_transport.h"
#include "services/member/member_client.h"
#include "services/trainer/synchronizer_client.h"
#include "services/trainer/train_device.h"
#include "synchronizer/transport/weight_source.h"
#include "trainer/loop/sync_watch.h"
#include "trainer/loop/version_publisher.h"

namespace syncopate::trainerd {

// One rank of a trainer as a member: it joins the synchronizer and offers its shard of the weights for syncs. Rank 0
// also publishes versions and watches whether the syncs of them succeed. Thread-safe after Join.
class TrainerMembership {
 public:
  struct Options {
    daemon::Daemon* daemon = nullptr;
    const TrainDevice* device = nullptr;  // with stager and transports
    std::string address;                  // at which others reach this rank: host:port
    std::string metrics_address;
    // Called once for each refusal, from any thread: this trainer cannot go on. Must not block.
    std::function<void(const absl::Status&)> on_refused;
  };
  struct Claim {
    std::string run_id;  // "" if the synchronizer may choose
    int64_t checkpoint_epoch = 0;
    std::string start = {};  // rank 0's incarnation; "": this is rank 0
    int64_t held_epoch = 0;  // in which rank 0 works; 0: this is rank 0, which asks for a new one
  };

  // Opens nothing and does not block.
  explicit TrainerMembership(Options options);
  ~TrainerMembership();  // Stop()

  // Joins and blocks until the synchronizer has answered, at most a minute. CANCELLED (reason STOPPED) if the daemon is
  // asked to stop before; UNAVAILABLE (reason NOT_JOINED) after the minute; the synchronizer's refusals.
  absl::StatusOr<synchronizer::Welcome> Join(const Claim& claim);
  // On rank 0, after Join, once: starts publishing versions and watching syncs.
  absl::Status Begin();

  // Queues the newest version for the synchronizer; does not block.
  void Publish(trainer::Publication publication) { publisher_->Publish(std::move(publication)); }
  bool syncs_fail() const { return sync_watch_->failing(); }
  // Null before Begin.
  SynchronizerClient* synchronizer() { return synchronizer_.get(); }
  // The address with which other processes reach this trainer's services.
  const std::string& address() const { return options_.address; }
  // Does nothing before Join.
  void Leave(const std::string& why) {
    if (member_ != nullptr) member_->Leave(why);
  }
  // Ends all threads of this object. Idempotent; blocks for a second at most.
  void Stop();

 private:
  const Options options_;
  member::GrpcSource grpc_source_;
  std::vector<synchronizer::SourceTransport*> transports_;  // those that are offered
  synchronizer::WeightSource source_;
  member::SourceParticipant participant_;
  std::unique_ptr<member::MemberClient> member_;
  std::unique_ptr<SynchronizerClient> synchronizer_;
  std::unique_ptr<trainer::VersionPublisher> publisher_;
  std::unique_ptr<trainer::SyncWatch> sync_watch_;
};

}  // namespace syncopate::trainerd
