#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/unit/trainer/data/ledger_simulation.h"

namespace syncopate::trainer {

// The world of Simulate(): rollouters, the trainer's shell, and the book that lists the ledger's errors.
class LedgerWorld {
 public:
  LedgerWorld(const SimulationConfig& config, const MakeLedger& make_ledger);
  SimulationOutcome Run();

 private:
  using Result = GroupLedger::Result;

  struct Rollouter {
    int64_t life = 0;       // incarnation: incremented by each kill
    double slowness = 1;    // the factor by which its answers take longer than usual
    SessionId session = 0;  // 0: not connected
    PolicyVersion serving;
    std::vector<std::pair<double, PolicyVersion>> served;  // the versions that it has served, with their begin
    std::map<LeaseId, Lease> running;
    std::set<LeaseId> hung;   // of `running`: leases that will never get an answer
    double wedged_until = 0;  // until then the rollouter only sends heartbeats
    double paused_until = 0;  // until then the rollouter does nothing and asks for nothing
    std::map<LeaseId, SharedGroup> unacknowledged;
    std::set<LeaseId> started;  // of them: on this stream, so that it reports what it makes
    // Of running leases: the versions that made each sample's tokens behind its start, and how many of these were
    // reported.
    std::map<LeaseId, std::vector<std::vector<PolicyVersion>>> made;
    std::map<LeaseId, std::vector<size_t>> reported;
  };

  struct LoggedRecord {
    uint64_t sequence = 0;
    LogRecord record;
  };

  struct Checkpoint {
    int64_t step = 0;
    DataState state;
    uint64_t oldest_needed = 0;
  };

  // Chance and time.
  double Uniform() { return std::uniform_real_distribution<double>(0, 1)(random_); }
  bool Chance(double p) { return config_.faults && Uniform() < p; }
  int64_t Int(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }
  double Exponential(double mean) { return mean == 0 ? 0 : std::exponential_distribution<double>(1 / mean)(random_); }
  template <typename T>
  T Choice(std::initializer_list<T> values) {
    return *(values.begin() + Int(0, static_cast<int64_t>(values.size()) - 1));
  }
  absl::Time Now() const { return absl::UnixEpoch() + absl::Seconds(now_); }
  void After(double delay, std::function<void()> act) { events_.push({now_ + delay, ++order_, std::move(act)}); }
  // Runs `act` likewise, unless the trainer has crashed by then.
  void TrainerAfter(double delay, std::function<void()> act);

  // Rollouters.
  void Connect(size_t r);
  void Break(size_t r);
  void Kill(size_t r);
  void SendState(size_t r);
  void Serve(size_t r, const PolicyVersion& version);
  void ReportProgress(size_t r);
  // Makes a token of some samples, and reports some of what was made.
  void ReportParts(size_t r, const Lease& lease);
  void Revoke(const Revocation& revoked);
  void DropPastDeadline();
  void FixLoad();
  // The time at which the rollouter can act again; the present time if it can act.
  double FreeAt(size_t r) const { return std::max({now_, rollouters_[r].wedged_until, rollouters_[r].paused_until}); }
  void StartLease(size_t r, SessionId session, const Lease& lease);
  void FinishLease(size_t r, const LeaseId& id, const PolicyVersion& first);
  // The answer of a rollouter that began it with version `first`, `seconds` ago.
  SharedGroup Answer(const Lease& lease, const Rollouter& rollouter, const PolicyVersion& first, double seconds);
  std::vector<VersionSpan> DrawSpans(const Rollouter& rollouter, const PolicyVersion& first, double seconds);
  std::vector<VersionSpan> GoOn(const std::vector<PolicyVersion>& made, int32_t begin, const PolicyVersion& serving);
  SharedGroup Spoil(const SharedGroup& group);
  void Deliver(size_t r, SessionId session, const SharedGroup& group);

  // The trainer's shell.
  void Start(PolicyVersion version, RestoredData data);
  void Append(LogRecord record, std::function<void(bool durable, uint64_t sequence)> done);
  void Pump();
  void BeginStep(GroupLedger::Take take);
  void EndStep();
  void Publish();
  void SaveCheckpoint();
  void Crash();
  void Restore();
  void Acknowledge(size_t r, const LeaseId& lease);

  // The book.
  void Forget(const LeaseId& lease, SessionId holder);
  void CheckIssued(const IssuedLease& issued);
  void CheckSecond(const IssuedLease& issued);
  // Tokens that were reported are not made again, and by nobody with older weights.
  void CheckStart(const IssuedLease& issued);
  // Each token is at the place where it was made.
  void CheckPlaces(const TrajectoryGroup& group);
  void CheckLiveAreOutstanding();
  void CheckAccepted(SessionId session, const LeaseId& lease, const GroupLedger::Verdict& verdict);
  void CheckRevoked(const Revocation& revoked);
  void CheckNoneStalls();
  // The session reports on a lease, and does not hold it any more.
  void Hears(SessionId session, const LeaseId& lease);
  void Wrong(std::string text) { outcome_.errors.push_back(absl::StrCat("t=", now_, ": ", text)); }
  void CheckVerdict(SessionId session, const SharedGroup& group, const GroupLedger::Verdict& verdict);
  void CountTokens(const TrajectoryGroup& group, int64_t step, double seconds);
  void CheckTake(const GroupLedger::Take& take);
  void CheckEnd();
  bool WasAccepted(const LeaseId& lease) const;
  bool Survives(const PolicyVersion& version) const;

  struct Event {
    double time;
    int64_t order;
    std::function<void()> act;
    bool operator>(const Event& other) const { return std::tie(time, order) > std::tie(other.time, other.order); }
  };

  const SimulationConfig config_;
  const MakeLedger make_ledger_;
  std::mt19937_64 random_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  double now_ = 0;
  int64_t order_ = 0;

  GroupLedger::Options options_;
  std::unique_ptr<PromptSource> prompts_;
  double usual_ = 1;  // the usual time of a group
  double sigma_ = 1, lag_ = 0, step_time_ = 0.25, log_time_ = 0.01, equal_rewards_ = 0, trouble_ = 0, crash_ = 0;
  int64_t capacity_ = 4, checkpoint_every_ = 5;

  std::vector<Rollouter> rollouters_;
  std::unique_ptr<GroupLedger> ledger_;  // null while the trainer is down
  int64_t trainer_life_ = 0;
  PolicyVersion published_;
  std::deque<LoggedRecord> log_;     // durable records
  std::deque<LogRecord> unwritten_;  // records that were handed in and are not durable
  uint64_t last_sequence_ = 0;
  double log_free_ = 0;
  double waits_since_ = 0;  // the time of the last step
  std::vector<Checkpoint> checkpoints_;
  double last_progress_ = 0;

  // The live attempts and their holders.
  struct Live {
    PolicyVersion admitted;
    std::map<int32_t, SessionId> attempts;
  };
  std::map<GroupId, Live> live_;  // for the groups that are leased
  std::map<GroupId, int32_t> last_attempts_;
  // Leases that are out, with the times of the lease and of the last report.
  struct Out {
    SessionId holder = 0;
    double issued = 0, heard = 0;
  };
  std::map<LeaseId, Out> out_;
  std::map<SessionId, std::set<LeaseId>> owes_;  // leases that stalled, until the session moves
  std::map<LeaseId, double> times_;              // the time that an answer takes, as drawn
  std::set<SharedGroup> spoiled_;                // answers that are invalid
  std::set<LeaseId> acknowledged_;
  std::map<int64_t, std::vector<LeaseId>> history_;        // the surviving steps
  std::map<int64_t, std::vector<LeaseId>> durable_takes_;  // logged takes by step
  std::map<LeaseId, DropReason> dropped_;
  std::map<int64_t, int64_t> restored_at_;  // epoch -> step at which it began
  SimulationOutcome outcome_;
};

}  // namespace syncopate::trainer
