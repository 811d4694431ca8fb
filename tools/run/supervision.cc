#include "tools/run/supervision.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/daemon/exit_code.h"
#include "base/status.h"
#include "services/config/run_config.h"

// States of a child:
//
//   absent --the run begins, or the synchronizer is ready--> starting --OnReady--> ready --OnExit--> absent
//   starting, ready --OnExit, not the trainer--> backoff --its time--> starting; too often: given up
//   starting --OnExit, the disk is full--> backoff --its time--> starting; never too often
//
// The end of the trainer is the end of the run: after exit code 0 the run is complete; otherwise it has failed, because
// only a resume can find out which state on disk is whole. The synchronizer and rollouters may die at any time and are
// started again. A stop always has the same order: first the trainer, which saves, then all others, which have nothing
// to save; each stage has its share of the grace.
namespace syncopate::run {
namespace {

constexpr char kSynchronizer[] = "synchronizer";
constexpr char kTrainer[] = "trainer";
constexpr char kRollouter[] = "rollouter";
constexpr char kEnvironment[] = "environment";
constexpr double kTrainerShareOfGrace = 0.7;  // a trainer that is still alive is killed then
constexpr double kAllShareOfGrace = 0.9;      // all others too, so that all is over within the grace

constexpr absl::Duration kOneInterrupt = absl::Milliseconds(200);

const ChildId kTrainerId{kTrainer, 0};
const ChildId kSynchronizerId{kSynchronizer, 0};

}  // namespace

std::string ChildId::Name() const {
  return rank == 0 ? absl::StrCat(role, "-", index) : absl::StrCat(role, "-", index, "-rank", rank);
}

std::string ChildExit::ToString() const {
  if (late_after > absl::ZeroDuration()) {
    return absl::StrCat("was not ready ", absl::FormatDuration(late_after),
                        " after its start and was killed; the end of its log says what it waited for");
  }
  return by_signal ? absl::StrCat("was killed by signal ", code) : absl::StrCat("exited with code ", code);
}

RunSupervision::RunSupervision(const Options& options) : options_(options) {
  // All children, so that tables show them before they start.
  children_[kSynchronizerId];
  for (int64_t i = 0; i < options_.trainer_ranks; ++i) children_[{kTrainer, i}];
  for (int64_t i = 0; i < options_.workers; ++i) children_[{kEnvironment, i}];
  for (int64_t i = 0; i < options_.rollouters; ++i) {
    for (int64_t rank = 0; rank < options_.rollouter_ranks; ++rank) children_[{kRollouter, i, rank}];
  }
}

std::vector<ChildAction> RunSupervision::Start(absl::Time now) {
  std::vector<ChildAction> actions;
  StartChild(kSynchronizerId, now, &actions);
  for (int64_t i = 0; i < options_.workers; ++i) StartChild({kEnvironment, i}, now, &actions);
  return actions;
}

void RunSupervision::StartChild(const ChildId& id, absl::Time now, std::vector<ChildAction>* actions) {
  Child& child = children_[id];
  child.state = State::kStarting;
  child.since = now;
  child.no_room = child.is_late = false;
  ++child.starts;
  actions->push_back({ChildAction::Kind::kStart, id});
}

std::vector<ChildAction> RunSupervision::OnReady(const ChildId& id, absl::Time now) {
  std::vector<ChildAction> actions;
  Child& child = children_[id];
  // The child may have exited between its announcement and this call.
  if (child.state != State::kStarting) return actions;
  child.state = State::kReady;
  child.since = now;
  child.failed_starts = 0;
  child.was_ready = true;
  // Daemons call the synchronizer first, and rollouters the workers: all of them must listen before other children
  // start.
  bool all_begin = children_[kSynchronizerId].was_ready;
  for (int64_t i = 0; i < options_.workers; ++i) all_begin = all_begin && children_[{kEnvironment, i}].was_ready;
  if (!all_begin || stopping()) return actions;
  for (auto& [other, state] : children_) {
    if (state.state == State::kAbsent) StartChild(other, now, &actions);
  }
  return actions;
}

std::vector<ChildAction> RunSupervision::OnExit(const ChildId& id, const ChildExit& reported, absl::Time now) {
  std::vector<ChildAction> actions;
  Child& child = children_[id];
  ChildExit exit = reported;
  if (child.is_late && exit.by_signal) exit.late_after = StartTimeout(id);
  bool was_ready = child.state == State::kReady;
  child.state = State::kAbsent;
  child.since = now;
  if (stopping()) {
    // The trainer has saved or died: the others are not needed any more.
    if (id == kTrainerId) StopOthers(&actions);
    return actions;
  }
  if (!was_ready && !exit.by_signal && exit.code == daemon::kExitNoSpace) {
    child.no_room = true;
    child.state = State::kBackoff;
    child.since = now + options_.disk_retry;
    return actions;
  }
  // A new start would be refused again.
  bool refused = !exit.by_signal && exit.code == config::kConfigExitCode;
  if (id == kTrainerId) {
    bool well = !exit.by_signal && exit.code == 0;
    if (well) {
      EndRun(RunOutcome::kCompleted, now, &actions);
    } else {
      const bool fenced = !exit.by_signal && exit.code == daemon::kExitFenced;
      hopeless_ = refused || fenced || (!exit.by_signal && !was_ready && exit.code == daemon::kExitFailed);
      FailOnRank(id, exit, now, &actions);
    }
  } else if (id.role == kTrainer) {
    // Rank 0 tells the others when the run is over, and ends a little later. A rank that fails ends the run.
    if (exit.by_signal || exit.code != 0) {
      FailOnRank(id, exit, now, &actions);
    } else {
      child.state = State::kGivenUp;
    }
  } else if (refused) {
    hopeless_ = true;
    Fail(id.Name(), "refuses its configuration", now, &actions);
  } else {
    ScheduleRestart(id, was_ready, exit, now, &actions);
  }
  return actions;
}

void RunSupervision::ScheduleRestart(const ChildId& id, bool was_ready, const ChildExit& exit, absl::Time now,
                                     std::vector<ChildAction>* actions) {
  Child& child = children_[id];
  if (!was_ready) ++child.failed_starts;
  // Only the last minute counts: a rollouter may die every hour for a week.
  while (!child.restarts.empty() && child.restarts.front() <= now - absl::Minutes(1)) child.restarts.pop_front();
  // None of these starts became ready: waiting does not help.
  if (child.failed_starts >= options_.max_failed_starts) {
    GiveUp(id, absl::StrCat("failed to start ", child.failed_starts, " times; the last time it ", exit.ToString()), now,
           actions);
    hopeless_ = !child.was_ready;
    return;
  }
  if (static_cast<int>(child.restarts.size()) >= options_.max_restarts_per_minute) {
    GiveUp(id, absl::StrCat("died ", child.restarts.size() + 1, " times within a minute"), now, actions);
    return;
  }
  absl::Duration backoff = options_.min_backoff;
  for (int i = 1; i < child.failed_starts && backoff < options_.max_backoff; ++i) backoff *= 2;
  child.state = State::kBackoff;
  child.since = now + std::min(backoff, options_.max_backoff);
}

void RunSupervision::GiveUp(const ChildId& id, const std::string& why, absl::Time now,
                            std::vector<ChildAction>* actions) {
  children_[id].state = State::kGivenUp;
  // Without one of these the run stands still; without some rollouters it is only slower.
  const bool no_worker = options_.workers > 0 && !AnyWorkerLeft();
  if (id == kSynchronizerId || no_worker || !AnyRollouterLeft() || !AllHaveBegun()) {
    Fail(id.Name(), why, now, actions);
  }
}

bool RunSupervision::AllHaveBegun() const {
  return std::none_of(children_.begin(), children_.end(),
                      [](const auto& entry) { return entry.second.state == State::kAbsent; });
}

bool RunSupervision::AnyWorkerLeft() const {
  return std::any_of(children_.begin(), children_.end(), [](const auto& entry) {
    return entry.first.role == kEnvironment && entry.second.state != State::kGivenUp;
  });
}

bool RunSupervision::AnyRollouterLeft() const {
  std::map<int64_t, bool> whole;  // by index: no rank of it is given up
  for (const auto& [id, child] : children_) {
    if (id.role != kRollouter) continue;
    const bool there = child.state != State::kGivenUp;
    whole[id.index] = id.rank == 0 ? there : whole[id.index] && there;
  }
  return std::any_of(whole.begin(), whole.end(), [](const auto& entry) { return entry.second; });
}

std::vector<ChildId> RunSupervision::OfEarlierLife(const ChildId& id) const {
  std::vector<ChildId> earlier;
  const int64_t starts = children_.at(id).starts;
  for (const auto& [other, child] : children_) {
    const bool same_rollouter = id.role == kRollouter && other.role == kRollouter && other.index == id.index;
    if (same_rollouter && other.rank != id.rank && Alive(child) && child.starts <= starts) earlier.push_back(other);
  }
  return earlier;
}

void RunSupervision::Fail(const std::string& culprit, const std::string& reason, absl::Time now,
                          std::vector<ChildAction>* actions) {
  culprit_ = culprit;
  reason_ = culprit.empty() ? reason : absl::StrCat(culprit, " ", reason);
  EndRun(RunOutcome::kFailed, now, actions);
}

void RunSupervision::FailOnRank(const ChildId& id, const ChildExit& exit, absl::Time now,
                                std::vector<ChildAction>* actions) {
  const bool has_lost_one = !exit.by_signal && exit.code == daemon::kExitLostPeer;
  const bool several = options_.trainer_ranks > 1;
  // The codes of the other ranks say that a rank was lost, not which one: a killed rank reports nothing.
  lost_peer_ = has_lost_one || (several && exit.by_signal);
  Fail(id.Name(), exit.ToString(), now, actions);
  if (!several || !has_lost_one) return;
  kill_trainer_at_ = std::min(kill_trainer_at_, now + options_.lost_rank_grace);
  kill_all_at_ = std::min(kill_all_at_, now + options_.lost_run_grace);
}

void RunSupervision::EndRun(RunOutcome outcome, absl::Time now, std::vector<ChildAction>* actions) {
  outcome_ = outcome;
  kill_trainer_at_ = now + kTrainerShareOfGrace * options_.grace;
  kill_all_at_ = now + kAllShareOfGrace * options_.grace;
  if (Alive(children_[kTrainerId])) {
    actions->push_back({ChildAction::Kind::kTerminate, kTrainerId});
  } else {
    StopOthers(actions);
  }
}

void RunSupervision::StopOthers(std::vector<ChildAction>* actions) {
  if (others_asked_) return;
  others_asked_ = true;
  for (const auto& [id, child] : children_) {
    if (Alive(child)) actions->push_back({ChildAction::Kind::kTerminate, id});
  }
}

// Kills all late ranks if a rank was lost; else only rank 0, which the others follow.
void RunSupervision::KillLateTrainer(std::vector<ChildAction>* actions) {
  late_trainer_killed_ = true;
  for (const auto& [id, child] : children_) {
    if (id.role != kTrainer || !Alive(child) || (id.index > 0 && !lost_peer_)) continue;
    actions->push_back({ChildAction::Kind::kKill, id});
    if (lost_peer_) absl::StrAppend(&reason_, "; ", id.Name(), " did not end and was killed");
  }
}

void RunSupervision::KillAll(std::vector<ChildAction>* actions) const {
  for (const auto& [id, child] : children_) {
    if (Alive(child)) actions->push_back({ChildAction::Kind::kKill, id});
  }
}

std::vector<ChildAction> RunSupervision::OnInterrupt(absl::Time now) {
  std::vector<ChildAction> actions;
  if (interrupted_at_ != absl::InfiniteFuture()) {
    // One Ctrl-C may arrive twice, from the terminal and from a shell that passes it on; both count as one.
    if (now - interrupted_at_ >= kOneInterrupt) KillAll(&actions);
    return actions;
  }
  interrupted_at_ = now;
  if (!stopping()) EndRun(RunOutcome::kInterrupted, now, &actions);
  return actions;
}

std::vector<ChildAction> RunSupervision::OnFailure(const std::string& reason, absl::Time now) {
  std::vector<ChildAction> actions;
  if (!stopping()) Fail("", reason, now, &actions);
  return actions;
}

std::vector<ChildAction> RunSupervision::OnTick(absl::Time now) {
  std::vector<ChildAction> actions;
  if (stopping()) {
    if (!late_trainer_killed_ && now >= kill_trainer_at_) KillLateTrainer(&actions);
    if (!late_others_killed_ && now >= kill_all_at_) {
      late_others_killed_ = true;
      KillAll(&actions);
    }
    return actions;
  }
  for (auto& [id, child] : children_) {
    if (child.state == State::kBackoff && now >= child.since) {
      if (const std::vector<ChildId> earlier = OfEarlierLife(id); !earlier.empty()) {
        if (now < child.since + options_.lost_replica_grace) continue;
        for (const ChildId& stuck : earlier) actions.push_back({ChildAction::Kind::kKill, stuck});
        child.since = now;  // kill once; their exits are reported like any other
        continue;
      }
      if (!child.no_room) {
        ++child.restarts_total;
        child.restarts.push_back(now);
      }
      StartChild(id, now, &actions);
    } else if (child.state == State::kStarting && now >= child.since + StartTimeout(id)) {
      child.since = now;  // kill once; its exit is reported like any other
      child.is_late = true;
      actions.push_back({ChildAction::Kind::kKill, id});
    }
  }
  return actions;
}

absl::Time RunSupervision::NextTick() const {
  absl::Time next = absl::InfiniteFuture();
  if (stopping()) {
    if (!late_trainer_killed_) return kill_trainer_at_;
    return late_others_killed_ ? next : kill_all_at_;
  }
  for (const auto& [id, child] : children_) {
    if (child.state == State::kBackoff) {
      next = std::min(next, OfEarlierLife(id).empty() ? child.since : child.since + options_.lost_replica_grace);
    }
    if (child.state == State::kStarting) next = std::min(next, child.since + StartTimeout(id));
  }
  return next;
}

bool RunSupervision::done() const {
  return stopping() &&
         std::none_of(children_.begin(), children_.end(), [this](const auto& entry) { return Alive(entry.second); });
}

bool RunSupervision::resume_helps() const {
  if (outcome_ == RunOutcome::kInterrupted) return true;
  return outcome_ == RunOutcome::kFailed && !hopeless_;
}

bool RunSupervision::WillRestart(const ChildId& child) const {
  return !stopping() && children_.at(child).state == State::kBackoff;
}

bool RunSupervision::WaitsForRoom(const ChildId& child) const {
  return WillRestart(child) && children_.at(child).no_room;
}

std::map<ChildId, int64_t> RunSupervision::Restarts() const {
  std::map<ChildId, int64_t> restarts;
  for (const auto& [id, child] : children_) restarts[id] = child.restarts_total;
  return restarts;
}

}  // namespace syncopate::run
