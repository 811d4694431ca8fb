#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "synchronizer/loop/control_plane.h"
#include "synchronizer/loop/posted_events.h"

namespace syncopate::synchronizer {

// The real ControlPlane among simulated processes and a simulated network, in virtual time, from one seed.
//
// The network behaves like gRPC streams: messages arrive in order or the stream breaks. A break loses the messages in
// transit in both directions, and each end notices it separately; a new stream may overtake an old one. Processes are
// killed, stopped for up to 30 s and continued, and started again, including the synchronizer, which restarts from its
// durable records. The invariants are checked during the run; each violation is recorded as a sentence.
class Simulation {
 public:
  struct Faults {
    bool breaks = false;        // streams break
    bool kills = false;         // rollouters die and are started again
    bool stalls = false;        // rollouters are stopped and continued
    bool trainer = false;       // the trainer dies, is stopped, or a second one is started by mistake
    bool synchronizer = false;  // the synchronizer dies or is stopped
    bool refusals = false;      // receivers and transfers fail now and then
    bool disk = false;          // the synchronizer's disk is full for a while
    bool sleeps = false;        // rollouters sleep, and lose their weights in some sleeps
    bool damage = false;        // a rollouter's weights change in its memory
  };
  // Mutants of a rollouter, where versions have adapters.
  enum class Mutant : uint8_t {
    kNone,
    kForgetsBase,   // never says that it holds the base: it is sent again with each version
    kForgetsSleep,  // says after each sleep that it still holds the base
  };
  struct Options {
    uint64_t seed = 0;
    int rollouters = 4;
    int trainer_ranks = 1;
    bool group_transport = false;  // bytes reach all receivers of an attempt or none
    Faults faults;
    double fault_seconds = 40;    // faults happen until then; afterwards everything heals
    double publish_seconds = 60;  // publications go on until then
    double end_seconds = 70;
    double publish_every = 0.4;         // the mean interval
    std::optional<double> stop_one_at;  // rollouter 0 is stopped then, for 20 s
    std::optional<double> join_one_at;  // one more rollouter starts then
    bool rehearse = true;
    // A mutant of the trainer: each rank reports its own newest part by itself, and a version exists once all of its
    // parts have been reported.
    bool publish_by_parts = false;
    std::optional<double> disk_full_at;  // the disk is full from then on, for 20 s
    // Versions have adapters, and take much longer to send with their base weights than without. A trainer may be
    // started with another base.
    bool adapters = false;
    Mutant mutant = Mutant::kNone;
    std::optional<double> damage_one_at;  // rollouter 0's weights change in its memory
    std::optional<double> trigger_at;     // somebody asks for a sync, and so for a check of all weights
  };

  explicit Simulation(const Options& options);

  void Run();

  const std::vector<std::string>& violations() const { return violations_; }
  // Equal exactly if the synchronizer did the same at the same times.
  uint64_t trace_hash() const { return trace_hash_; }
  int64_t installs() const { return installs_; }
  int64_t failures() const { return failures_; }
  int64_t relabels() const { return relabels_; }
  int64_t epochs() const { return std::ssize(epoch_owner_); }
  int64_t superseded() const { return superseded_; }
  int64_t groups_lost() const { return groups_lost_; }
  int64_t not_prepared() const { return not_prepared_; }
  int64_t connected() const { return connected_; }          // receivers that rehearsals connected
  int64_t not_connected() const { return not_connected_; }  // receivers whose rehearsals failed
  // Syncs that had to form their group, and those that used a group that a rehearsal was forming.
  int64_t formed_in_syncs() const { return formed_in_syncs_; }
  int64_t taken_over() const { return taken_over_; }
  int64_t bases_sent() const { return bases_sent_; }      // transfers that brought base weights
  int64_t damage_found() const { return damage_found_; }  // rollouters that a check has ended
  int64_t blocked() const { return blocked_; }            // how often the synchronizer waited for room on its disk
  // Receivers that were lost before, in and after their transfer.
  const std::array<int64_t, 3>& lost() const { return lost_; }
  // The longest time from a publication until a rollouter that was never disturbed served that version or a newer one.
  double worst_lag() const { return worst_lag_; }
  // Versions that some such rollouter did not serve within 0.2 s.
  int64_t late() const { return static_cast<int64_t>(late_.size()); }

 private:
  static constexpr double kMaxDelay = 0.005;  // of a message, in seconds
  static constexpr size_t kSlots = 2;         // versions that a trainer keeps staged
  static constexpr size_t kKeptGroups = 2;    // communicators that a member keeps
  static constexpr double kMaxForming = 0.8;  // time to form a group, in seconds
  static constexpr double kAbort = 0.4;       // time to abort a group that is being formed

  struct Node {  // one incarnation of a process
    MemberId id;
    bool alive = true;
    double stopped_until = 0;
    std::vector<std::function<void()>> held;  // messages that arrived while the node was stopped
    SessionId session = 0;
    bool welcomed = false;
    PolicyVersion serving;
    uint64_t serving_digest = 0;
    // The base weights: those in memory, those that it remembers, and those of the offered version; a trainer's are in
    // `base`. 0: none.
    uint64_t base = 0;
    uint64_t known_base = 0;
    uint64_t offered_base = 0;
    bool damaged = false;  // its weights are not what it remembers
    bool asleep = false;
    bool drowsy = false;  // sleeps as soon as its attempt has ended
    ReceiverWeights sleep;
    // For a rollouter: the attempt in which it takes part, and its stage.
    int64_t attempt = 0;
    SyncStage stage = SyncStage::kPrepare;
    PolicyVersion offered;
    uint64_t offered_digest = 0;
    bool shadow_verified = false;
    bool sent_base = false;             // in the current transfer
    std::vector<SyncMember> receivers;  // the receivers of the current transfer
    double told = 0;                    // when the transfer began
    // For group transports: the groups that the member keeps, the open rehearsal that it was asked for, and the time
    // until which it aborts a group.
    std::deque<std::string> kept;
    int64_t rehearsal = 0;
    std::string forming;  // the rehearsal's group, from Transfer on
    double aborts_until = 0;
    // For a trainer:
    int64_t epoch = 0;
    int64_t step = 0;
    std::deque<PolicyVersion> staged;       // the newest two
    std::map<int64_t, PolicyVersion> pins;  // by attempt
    bool publishing = false;
    std::optional<ControlPlane::Publication> untold;  // for publish_by_parts: a newer part replaces it during a call
    bool telling = false;
    bool restored = false;             // the first version has the bits of the checkpoint
    std::map<int64_t, uint64_t> bits;  // the bits of each step that it has staged
  };
  using NodePtr = std::shared_ptr<Node>;

  struct Stream {
    NodePtr node;
    bool broken = false;
    double last_up = 0;
    double last_down = 0;
  };

  // Time and chance.
  void At(double time, std::function<void()> action);
  void After(double seconds, std::function<void()> action);
  double Uniform(double low, double high) { return std::uniform_real_distribution<double>(low, high)(random_); }
  bool Chance(double probability) { return Uniform(0, 1) < probability; }
  absl::Time Time() const { return absl::UnixEpoch() + absl::Seconds(now_); }
  void Violate(const std::string& what);

  // Processes.
  NodePtr Start(const MemberId& id);
  void StartTrainer();  // starts all ranks; this trainer is the newest from now on
  std::vector<NodePtr> GetRanks(const NodePtr& trainer) const;
  // Runs the action now, when the node is continued, or never.
  void OnNode(const NodePtr& node, std::function<void()> action);
  void Stop(const NodePtr& node, double seconds);
  void Kill(const NodePtr& node);
  void Connect(const NodePtr& node);
  void NodeLostStream(const NodePtr& node, SessionId session);
  void Beat(const NodePtr& node, SessionId session);
  void SendHeartbeat(const NodePtr& node, SessionId session);
  void FallAsleep(const NodePtr& node, int level, double seconds);
  void WakeUp(const NodePtr& node);
  // The base weights that a rollouter says it holds.
  uint64_t ClaimedBase(const NodePtr& node) const;
  bool HoldsBase(const NodePtr& node, uint64_t base) const { return node->base == base && !node->damaged; }
  void CheckBaseIsSentWhenItLacks(const NodePtr& node, bool sent);
  // A rank of a trainer stages a version: it takes a slot that nobody reads, or else the oldest one.
  static void Stage(const NodePtr& rank, const PolicyVersion& version);
  void Trigger();
  void Publish(const NodePtr& trainer);
  void CheckPublished(PolicyVersion version);
  void TellPart(const NodePtr& rank, const NodePtr& trainer);
  void SendPublication(const NodePtr& trainer, const ControlPlane::Publication& publication);
  void RetryIfUnheard(uint64_t life, const std::shared_ptr<bool>& heard, const std::function<void()>& retry);
  void OnCommand(const NodePtr& node, SessionId session, const Command& command);
  void OnPrepare(const NodePtr& node, SessionId session, const Prepare& prepare);
  void OnTransfer(const NodePtr& node, SessionId session, const Transfer& transfer);
  bool IsHeldUp(const NodePtr& node, int64_t attempt, const NodePtr& source) const;
  // Rehearsals.
  std::vector<NodePtr> GetMembers(const Transfer& transfer) const;  // the members that are alive
  void OnRehearsalPrepare(const NodePtr& node, SessionId session, const Prepare& prepare);
  void OnRehearsalTransfer(const NodePtr& node, SessionId session, const Transfer& transfer);
  void FinishConnect(const NodePtr& node, SessionId session, const Transfer& transfer, double ready);
  void EndRehearsal(const NodePtr& node);
  void Keep(const NodePtr& node, const std::string& group);
  // The time in which the members of a sync form their group; 0 if they keep it or a rehearsal forms it.
  double FormingTime(const Transfer& transfer);
  void FinishTransfer(const NodePtr& node, SessionId session, int64_t attempt, const NodePtr& source);
  SyncReport MakeTransferReport(const NodePtr& node, int64_t attempt, const NodePtr& source);
  void OnInstall(const NodePtr& node, SessionId session, const Install& install);
  void Report(const NodePtr& node, SessionId session, SyncReport report);

  // The network.
  void Up(SessionId session, PostedEvents::Kind kind, std::function<void()> at_synchronizer);
  void Down(SessionId session, const Command& command);
  void Break(SessionId session);

  // The synchronizer.
  void StartSynchronizer();
  void CrashSynchronizer(double down_seconds);
  // Processes one event at a time, as ControlLoop does. For a call, `then` runs when all resulting actions are carried
  // out, and `refused` runs instead if the disk is full.
  struct Incoming {
    std::function<void()> event;
    PostedEvents::Kind kind = PostedEvents::Kind::kOther;
    SessionId session = 0;
    std::function<void()> then = nullptr;
    std::function<void()> refused = nullptr;
  };
  void OnSynchronizer(Incoming incoming);
  void CarryOut(std::function<void()> then = nullptr);
  // The first of `actions` is a record that does not fit on the disk: it waits, and so do all actions after it.
  void Block(std::vector<Action> actions, std::function<void()> then);
  void RetryWrite(uint64_t life);
  void Perform(const Action& action);
  void Note(const SyncRecord& record);
  void ScheduleTick();

  void InjectFault();
  void FillDisk(double seconds);
  void Heal();
  void CheckLag(PolicyVersion version, double published);
  void CheckEnd();

  Options options_;
  std::mt19937_64 random_;
  double now_ = 0;
  uint64_t sequence_ = 0;
  std::map<std::pair<double, uint64_t>, std::function<void()>> events_;

  std::shared_ptr<const Manifest> model_;
  std::optional<ControlPlane> plane_;
  uint64_t plane_life_ = 0;
  double plane_stopped_until_ = 0;
  std::vector<std::function<void()>> plane_held_;
  std::vector<LedgerRecord> disk_;
  double disk_full_until_ = 0;
  double blocked_since_ = 0;
  std::vector<Action> unwritten_;                     // the first action waits for room
  std::function<void()> unwritten_then_;              // runs after the unwritten actions
  PostedEvents posted_;                               // wait behind the unwritten actions
  std::map<PolicyVersion, std::set<int32_t>> parts_;  // for publish_by_parts: the ranks that have reported a version
  double next_tick_ = -1;

  std::map<int, NodePtr> rollouters_;
  NodePtr trainer_;
  std::vector<NodePtr> trainers_;
  std::map<SessionId, Stream> streams_;
  SessionId next_session_ = 1;
  int64_t next_incarnation_ = 1;
  int64_t blocked_ = 0;
  int64_t bases_sent_ = 0;
  int64_t damage_found_ = 0;
  uint64_t newest_base_ = 77;  // of the trainers that start from now on
  int64_t checkpoint_epoch_ = 0;
  int64_t checkpoint_step_ = 0;
  uint64_t checkpoint_bits_ = 0;  // 0: no checkpoint

  std::set<std::string> disturbed_;             // replicas that a fault has touched
  std::map<PolicyVersion, uint64_t> truth_;     // the digest of each version
  std::map<PolicyVersion, uint64_t> base_of_;   // the base weights of each version; 0: it has no adapters
  std::map<int64_t, std::string> epoch_owner_;  // the incarnation that was welcomed with the epoch
  std::vector<std::string> violations_;
  uint64_t trace_hash_ = 0;
  int64_t installs_ = 0;
  int64_t failures_ = 0;
  int64_t relabels_ = 0;
  int64_t superseded_ = 0;
  int64_t groups_lost_ = 0;
  int64_t not_prepared_ = 0;
  std::array<int64_t, 3> lost_ = {};
  std::map<int64_t, std::string> groups_;  // the group that the members of an attempt were given
  std::map<int64_t, double> forming_;      // the time in which the members of an attempt form their group
  int64_t connected_ = 0;
  int64_t not_connected_ = 0;
  int64_t formed_in_syncs_ = 0;
  int64_t taken_over_ = 0;
  double worst_lag_ = 0;
  std::set<PolicyVersion> late_;
};

}  // namespace syncopate::synchronizer
