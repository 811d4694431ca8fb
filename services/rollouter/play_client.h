#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/backoff.h"
#include "base/mutex.h"
#include "base/status.h"
#include "rollouter/environment/remote_environment.h"
#include "services/auth/transport_security.h"
#include "services/rollouter/worker_digest.h"
#include "services/rpc/bidi_stream.h"
#include "services/rpc/timer.h"
#include "syncopate/v1/environment.grpc.pb.h"

namespace syncopate::rollouterd {

// Environments of the worker process of users' Python (EnvironmentService): the client's end of Describe and Play. Keeps
// one stream and, when it breaks, connects again after a jittered backoff, for ever. The episodes of a broken stream are
// lost; those that wait for their Open stay. Thread-safe; only Stop blocks.
class PlayClient final : public rollouter::RemoteEnvironment, public std::enable_shared_from_this<PlayClient> {
 public:
  struct Options {
    std::string address;                                                // unix:PATH or host:port
    std::string digest = "";                                            // as EnvironmentClient::Options
    std::shared_ptr<WorkerDigest> shared_digest = nullptr;              // as EnvironmentClient::Options
    std::shared_ptr<const auth::TransportSecurity> security = nullptr;  // as EnvironmentClient::Options
    absl::Duration call_budget = absl::Seconds(60);                     // of one Open or Act, if the worker's is longer
    absl::Duration grace = absl::Seconds(2);  // the worker has this much more time to say that a budget is over
    absl::Duration cancel_timeout = absl::Seconds(5);  // the worker has so long to say that an episode is closed
    absl::Duration min_backoff = absl::Milliseconds(50);
    absl::Duration max_backoff = absl::Seconds(1);
    absl::Duration describe_timeout = absl::Seconds(5);
  };

  static std::shared_ptr<PlayClient> Start(Options options);
  ~PlayClient() override;

  // Errors besides those of RemoteEnvironment: FAILED_PRECONDITION (reason WRONG_DIGEST) if the worker's code is not the
  // run's.
  absl::Status Availability(const std::string& environment) const override;
  // Errors that `done` may get: what the environment raised; INVALID_ARGUMENT (reason BAD_REWARD or BAD_OUTCOME);
  // DEADLINE_EXCEEDED (reason ENVIRONMENT_TIMEOUT); INTERNAL (reason EPISODE_LOST), the worker or its stream has gone.
  void Open(rollouter::RemoteEpisode episode, Done done) override;
  void Act(const std::string& episode, rollouter::RemoteAction action, Done done) override;
  void Close(const std::string& episode, const std::string& reason) override;
  void SetAvailabilityListener(std::function<void()> changed) override;

  Counters counters() const override;
  // Closes the stream, so that the worker ends what is under way; afterwards neither `done` callbacks nor the listener
  // are called. Idempotent. Must not be called from a callback.
  void Stop();

 private:
  using Stream = rpc::ClientBidiStream<v1::PlayRequest, v1::PlayResponse>;
  using Said = absl::StatusOr<rollouter::EnvironmentMessage>;
  struct DescribeCall;
  struct Offered {
    int64_t episodes = 1;  // that the worker plays at once
    absl::Duration budget;
    int64_t open = 0;  // episodes that the worker has not closed
  };
  // The states of an episode: it waits in `waiting_`; then it is open at the worker; then, if it is closed from here, its
  // id is in `closing_` until the worker has closed it, too, or has had its time for that.
  struct Played {
    rollouter::RemoteEpisode opening;
    bool sent = false;
    int32_t turn = 0;     // of the call under way
    Done done = nullptr;  // of the call under way; null: there is none
    absl::Time began;     // when that was sent
    absl::Time due;       // when it has taken too long
  };
  struct Closing {
    std::string environment;
    absl::Time due;
  };
  // Calls of `done`, to be made without the lock.
  using Answers = std::vector<std::pair<Done, Said>>;

  explicit PlayClient(Options options);
  void Connect();
  void OnDescribed(const std::shared_ptr<DescribeCall>& call, const absl::Status& status);
  absl::Status CheckDescriptionLocked(const v1::DescribeResponse& response) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OpenStream(const std::shared_ptr<DescribeCall>& call);
  void OnResponse(const v1::PlayResponse& response);
  void OnObserveLocked(const v1::PlayResponse::Observe& observe, Answers* answers)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnClosedLocked(const v1::PlayResponse::Closed& closed, Answers* answers) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnStreamDone(const absl::Status& status);
  void OnDue();
  absl::Duration GetBudgetLocked(const std::string& environment) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BeginCallLocked(const std::string& id, Played* played, Done done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndCallLocked(const std::string& id, Played* played, Said said, Answers* answers)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LoseCancelLocked(const std::string& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FreeRoomLocked(const std::string& environment) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WatchDueLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendWaitingLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendCancelLocked(const std::string& id, const Played& played, const std::string& reason)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetAwayLocked(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ConnectLaterLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Calls back, and keeps Stop() waiting meanwhile.
  void Answer(Answers answers, bool notify);

  const Options options_;
  const std::shared_ptr<WorkerDigest> digest_;
  mutable Mutex mutex_;
  absl::Status there_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Offered> offered_ ABSL_GUARDED_BY(mutex_);  // the worker's environments, while it is connected
  std::map<std::string, Played> episodes_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::string> waiting_ ABSL_GUARDED_BY(mutex_);  // in the order of their Open; some may be closed already
  std::map<std::string, Closing> closing_ ABSL_GUARDED_BY(mutex_);
  std::set<std::pair<absl::Time, std::string>> due_ ABSL_GUARDED_BY(mutex_);  // calls and cancels by their last moment
  Answers failed_ ABSL_GUARDED_BY(mutex_);                                    // to be called back by the alarm
  rpc::Timer alarm_ ABSL_GUARDED_BY(mutex_);                                  // at the first of these
  absl::Time alarm_at_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  std::shared_ptr<DescribeCall> describing_ ABSL_GUARDED_BY(mutex_);  // null while no Describe is under way
  std::shared_ptr<Stream> stream_ ABSL_GUARDED_BY(mutex_);            // null while there is no stream
  Backoff backoff_ ABSL_GUARDED_BY(mutex_);
  rpc::Timer reconnect_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const std::function<void()>> listener_ ABSL_GUARDED_BY(mutex_);
  Counters counters_ ABSL_GUARDED_BY(mutex_);
  int callbacks_ ABSL_GUARDED_BY(mutex_) = 0;  // running, although their call or stream has ended
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace syncopate::rollouterd
