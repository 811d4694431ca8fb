#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/time/time.h"
#include "base/backoff.h"
#include "base/identity.h"
#include "base/mutex.h"
#include "base/trajectory.h"
#include "base/worker.h"
#include "rollouter/engine/engine_loop.h"
#include "rollouter/reward/scorer.h"
#include "rollouter/trajectory/lease_book.h"
#include "rollouter/trajectory/play_assembly.h"
#include "rollouter/trajectory/remote_play_assembly.h"
#include "rollouter/trajectory/stop_rules.h"
#include "services/auth/transport_security.h"
#include "services/rpc/bidi_stream.h"
#include "services/rpc/timer.h"
#include "syncopate/v1/trajectory.grpc.pb.h"

namespace syncopate::rollouterd {

// The rollouter's end of TrajectoryService.Exchange: asks the trainer for leases with credits, has the engine generate
// them, reports with each heartbeat which of them make progress, has the scorer compute their rewards, and submits the
// groups. Keeps one stream to the trainer that the directory names. When the stream breaks, all of its leases are given
// up, their generation is aborted, and the client connects again after a jittered backoff, for ever. Every message
// carries the served version, which never goes back. Thread-safe; only Stop, WaitScored and WaitIdle block.
class WorkClient final : public std::enable_shared_from_this<WorkClient> {
 public:
  struct Options {
    MemberId member;
    MemberSecret secret;  // of the member's incarnation
    rollouter::LeaseBook::Options leases = {};
    rollouter::StopRules stops = {};                          // of all answers
    std::optional<rollouter::PlayRules> play = std::nullopt;  // how samples play; none: an answer is one turn
    absl::Duration min_backoff = absl::Milliseconds(50);
    absl::Duration max_backoff = absl::Seconds(1);
    absl::Duration heartbeat = absl::Seconds(1);  // the longest time between two messages to the trainer
    int64_t report_tokens = 0;                    // a sample is reported when it has so many new ones; 0: none is
    // The devices of the engine's ranks, which share them with the trainer if it has one of them (run.share_gpu):
    // then they take turns. Empty: they share none.
    std::set<std::string> cards = {};
    // After so long without a stream the engine gives shared devices up by itself. Half of what the trainer waits
    // before it counts the rollouter as gone (CardTurns::Options::absent_limit).
    absl::Duration yields_after = absl::Seconds(5);
    absl::Duration yields_within = absl::Seconds(5);  // one try waits so long for a weight sync that is under way
    int64_t max_send_bytes = 64 << 20;                // a larger group cannot be submitted and is handed back
    rpc::StreamOptions stream = {};
    std::shared_ptr<const auth::TransportSecurity> security = nullptr;  // null: plaintext

    absl::Status Validate() const;
  };
  struct Counters {
    int64_t submitted = 0;  // groups sent to the trainer
    int64_t accepted = 0;   // acknowledged as accepted, now or before
    int64_t refused = 0;    // acknowledged as expired or invalid
    int64_t returned = 0;   // leases handed back
    int64_t streams = 0;    // streams opened
  };

  // `engine`, `scorer` and the environment of options.play must outlive the client and every request that they got from
  // it: stop all before one is freed, the client first. The client asks for no work while the scorer or the environment
  // is not available. INVALID_ARGUMENT for invalid options.
  static absl::StatusOr<std::shared_ptr<WorkClient>> Create(Options options, rollouter::EngineLoop* engine,
                                                            rollouter::Scorer* scorer);
  ~WorkClient();

  // Sets the address of rank 0 of the trainer of run `run_id`; an empty address: there is none now. Leaves the old
  // stream if that changed anything.
  void SetTrainer(const std::string& address, const std::string& run_id);
  // The engine serves `version` from now on; tells the trainer at once. May be called on the engine's thread.
  void SetServing(const PolicyVersion& version);
  // While draining, asks for and takes no work; running work is finished and submitted.
  void SetDraining(bool draining);
  // While paused, asks for no work; leased work waits.
  void SetPaused(bool paused);
  // While asleep, asks for and takes no work. Ends with SetAsleep(false), or when a version is served.
  void SetAsleep(bool asleep);
  // Bytes of weights have arrived: a rollouter that takes its device back moves. Does not block.
  void CountReceived(int64_t bytes) { moved_bytes_ += bytes; }
  // Blocks until nothing is being generated or scored, then true; false after `deadline`.
  bool WaitScored(absl::Duration deadline);
  // Hands back every lease that is not finished, for reason `why`, and aborts its generation.
  void HandBack(const absl::Status& why);
  // Sends the contents of a heartbeat now: the last figures before the process leaves.
  void Report();
  // Blocks until nothing is being generated or scored and every submission is answered, then true; false after
  // `deadline`.
  bool WaitIdle(absl::Duration deadline);

  // Ends the stream and joins the worker. Messages that were sent are still delivered if that takes no longer than
  // `deadline`; then the stream is cancelled. Blocks until the stream has ended. Idempotent. Must not be called from a
  // callback.
  void Stop(absl::Duration deadline = absl::ZeroDuration());

  Counters counters() const;
  // Counts what the worker's environments did; all 0 without a worker. After Stop() the counts no longer change.
  rollouter::RemoteEnvironment::Counters environment_counters() const;
  // Why this rollouter will never have rewards, so that the process should end: NOT_FOUND (reason NO_SUCH_REWARD or
  // NO_SUCH_ENVIRONMENT), the worker has none of that name. OK otherwise, also while it is only unavailable for now.
  absl::Status refusal() const;

 private:
  using Stream = rpc::ClientBidiStream<v1::ExchangeRequest, v1::ExchangeResponse>;
  struct Trainer {
    std::string address;
    std::string run_id;
    friend bool operator==(const Trainer&, const Trainer&) = default;
  };

  WorkClient(Options options, rollouter::EngineLoop* engine, rollouter::Scorer* scorer);

  void Connect();
  void ScheduleBeatLocked(int64_t stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ScheduleConnectLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddPartsLocked(int64_t least, v1::ExchangeRequest* request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnStreamDone(const absl::Status& status);
  void Beat(int64_t stream);
  void OnMessage(int64_t stream, v1::ExchangeResponse message);
  void OnWelcome(const v1::ExchangeResponse::Welcome& welcome);
  void OnLease(int64_t stream, const v1::ExchangeResponse::Lease& message);
  // What belongs to one lease while it is generated.
  struct Work {
    std::shared_ptr<rollouter::TokenCount> made = std::make_shared<rollouter::TokenCount>(0);
    std::shared_ptr<rollouter::AnswerReports> reports;
    std::shared_ptr<std::atomic<int64_t>> open_calls = std::make_shared<std::atomic<int64_t>>(0);
  };
  absl::Status Play(rollouter::GenerationRequest request, const Lease& lease, rollouter::GroupAssembly::Done done,
                    Work work);
  absl::Status PlayAtWorker(rollouter::GenerationRequest request, const Lease& lease,
                            rollouter::GroupAssembly::Done done, Work work, const std::string& environment);
  absl::Status Generate(int64_t stream, const Lease& lease, Work work);
  // What is kept for the lease that follows, should this one be lost; null if nothing of it is.
  std::shared_ptr<rollouter::AnswerReports> MakeReports(const Lease& lease) const;
  void OnGenerated(int64_t stream, const Lease& lease, absl::StatusOr<TrajectoryGroup> group);
  void OnEnded(int64_t stream, const LeaseId& lease, absl::StatusOr<TrajectoryGroup> group);
  void LookAtScorer();
  rollouter::RemoteEnvironment::Counters GetEnvironmentCounters() const;
  // OK if samples can be played and judged now.
  absl::Status GetAvailability() const;
  void AbortRequestLater(const std::string& id);
  void LogRewardFailureLocked(const LeaseId& lease, const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnAck(const v1::ExchangeResponse::Ack& ack);
  void OnRevoke(int64_t stream, const v1::ExchangeResponse::Revoke& revoke);
  void OnTurn(int64_t stream, const v1::ExchangeResponse::CardTurn& turn);
  // Gives the device up, or takes it back, as the trainer said last. By a thread of its own.
  void ObeyTurn();
  void ObeyTurnLaterLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ScheduleYieldLocked(absl::Duration delay) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void YieldIfStillLost();
  void AddTurnLocked(v1::ExchangeRequest* request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void GiveBack(const LeaseId& lease, const absl::Status& why);
  void AbortLater(int64_t stream, const LeaseId& lease);
  void SendReturnLocked(const LeaseId& lease, const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendLocked(v1::ExchangeRequest request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Reads the engine's status, so it must not be called under the lock.
  v1::ExchangeRequest WorkSoFar() const;
  v1::ExchangeRequest WorkSoFar(const rollouter::EngineStatus& engine) const;
  void SendCreditsLocked(v1::ExchangeRequest request = {}) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  rollouter::EngineLoop* const engine_;
  rollouter::Scorer* const scorer_;
  Worker aborts_;  // EngineLoop::Abort blocks for a decode step
  Worker turns_;   // EngineLoop::Yield blocks until all keys and values are moved

  mutable Mutex mutex_;
  rollouter::LeaseBook book_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Stream> stream_ ABSL_GUARDED_BY(mutex_);  // null while there is no stream
  Trainer trainer_ ABSL_GUARDED_BY(mutex_);
  PolicyVersion serving_ ABSL_GUARDED_BY(mutex_);
  Backoff backoff_ ABSL_GUARDED_BY(mutex_);
  rpc::Timer reconnect_ ABSL_GUARDED_BY(mutex_);
  rpc::Timer heartbeat_ ABSL_GUARDED_BY(mutex_);
  rpc::Timer lost_ ABSL_GUARDED_BY(mutex_);  // since the stream of a rollouter that takes turns has broken
  struct CardTurn {
    int64_t number = 0;
    bool yield = false;
    bool told = false;  // by this stream's trainer
    bool done = false;  // it has been obeyed
  };
  CardTurn turn_ ABSL_GUARDED_BY(mutex_);
  bool obeys_later_ ABSL_GUARDED_BY(mutex_) = false;  // ObeyTurn() is posted and has not begun
  bool shares_card_ ABSL_GUARDED_BY(mutex_) = false;  // with the trainer, as that has said last
  std::atomic<int64_t> moved_bytes_ = 0;              // to host memory, and received
  absl::Status last_error_ ABSL_GUARDED_BY(mutex_);   // logged when it changes
  Counters counters_ ABSL_GUARDED_BY(mutex_);
  rollouter::RemoteEnvironment::Counters last_environment_ ABSL_GUARDED_BY(mutex_);  // when the client stopped
  absl::Status no_rewards_ ABSL_GUARDED_BY(mutex_);     // why no rewards are available; OK: they are
  int64_t rewards_failed_ ABSL_GUARDED_BY(mutex_) = 0;  // failures since the last log line about them
  absl::Time next_reward_line_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace syncopate::rollouterd
