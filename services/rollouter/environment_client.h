#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/backoff.h"
#include "base/mutex.h"
#include "base/status.h"
#include "rollouter/reward/remote_scorer.h"
#include "services/auth/transport_security.h"
#include "services/rollouter/worker_digest.h"
#include "services/rpc/bidi_stream.h"
#include "services/rpc/timer.h"
#include "syncopate/v1/environment.grpc.pb.h"

namespace syncopate::rollouterd {

// Rewards from the worker process of users' Python (EnvironmentService): the client's end of Describe and Score. Keeps
// one stream and, when it breaks, connects again after a jittered backoff, for ever. All items under way on a broken
// stream fail, and this client does not repeat them: one of them may have broken it. Thread-safe; nothing but Stop blocks.
class EnvironmentClient final : public rollouter::RemoteScorer, public std::enable_shared_from_this<EnvironmentClient> {
 public:
  struct Options {
    std::string address;      // unix:PATH or host:port
    std::string digest = "";  // of the run's code; a worker with another one is not used. "": the first worker's
    std::shared_ptr<WorkerDigest> shared_digest = nullptr;  // in place of `digest`: of several workers
    // What encrypts the connection to a worker at host:port, and the token that is shown to it; null: plaintext and no
    // token.
    std::shared_ptr<const auth::TransportSecurity> security = nullptr;
    absl::Duration min_backoff = absl::Milliseconds(50);
    absl::Duration max_backoff = absl::Seconds(1);
    absl::Duration describe_timeout = absl::Seconds(5);
  };

  static std::shared_ptr<EnvironmentClient> Start(Options options);
  ~EnvironmentClient() override;

  // Errors besides RESOURCE_EXHAUSTED and UNAVAILABLE: NOT_FOUND (reason NO_SUCH_REWARD) if the worker has no reward of
  // this name, FAILED_PRECONDITION (reason WRONG_DIGEST) if its code is not the run's.
  absl::Status Availability(const std::string& reward) const override;
  void Score(rollouter::RemoteItem item, Done done) override;
  void Cancel(const std::string& id) override;
  void SetAvailabilityListener(std::function<void()> changed) override;

  // Closes the stream, so that the worker ends what is under way; afterwards neither `done` callbacks nor the listener
  // are called. Idempotent. Must not be called from a callback.
  void Stop();

 private:
  using Stream = rpc::ClientBidiStream<v1::ScoreRequest, v1::ScoreResponse>;
  struct DescribeCall;
  struct Offered {
    int64_t concurrency = 1;  // answers that the worker judges at once
    int64_t outstanding = 0;
    bool of_groups = false;     // its answers are judged together
    bool reads_tokens = false;  // it is sent their tokens
  };
  struct UnderWay {
    std::string reward;
    int64_t answers = 0;
    Done done;
  };

  explicit EnvironmentClient(Options options);
  void Connect();
  void OnDescribed(const std::shared_ptr<DescribeCall>& call, const absl::Status& status);
  absl::Status CheckDescriptionLocked(const v1::DescribeResponse& response) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OpenStream(const std::shared_ptr<DescribeCall>& call);
  void OnResponse(const v1::ScoreResponse& response);
  void OnItem(const v1::ScoreResponse::Item& item);
  void OnStreamDone(const absl::Status& status);
  // Calls `done` from another thread, as its owner may hold what `done` takes.
  void FailLater(Done done, absl::Status why);
  void OnFailed();
  void SetAwayLocked(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ConnectLaterLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NotifyListener();

  const Options options_;
  const std::shared_ptr<WorkerDigest> digest_;
  mutable Mutex mutex_;
  absl::Status there_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Offered> rewards_ ABSL_GUARDED_BY(mutex_);  // the worker's, while it is connected
  std::map<std::string, UnderWay> items_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<Done, absl::Status>> failed_ ABSL_GUARDED_BY(mutex_);  // to be called back by the alarm
  rpc::Timer alarm_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<DescribeCall> describing_ ABSL_GUARDED_BY(mutex_);  // null while no Describe is under way
  std::shared_ptr<Stream> stream_ ABSL_GUARDED_BY(mutex_);            // null while there is no stream
  Backoff backoff_ ABSL_GUARDED_BY(mutex_);
  rpc::Timer reconnect_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const std::function<void()>> listener_ ABSL_GUARDED_BY(mutex_);
  int callbacks_ ABSL_GUARDED_BY(mutex_) = 0;  // running, although their call or stream has ended
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace syncopate::rollouterd
