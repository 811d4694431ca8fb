#include "tests/unit/synchronizer/simulation.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/digest.h"
#include "tests/support/synchronizer_fixtures.h"

namespace syncopate::synchronizer {
namespace {

uint64_t HashText(const std::string& text) { return DigestBytes(text.data(), static_cast<int64_t>(text.size())); }

}  // namespace

Simulation::Simulation(const Options& options)
    : options_(options), random_(options.seed), model_(std::make_shared<Manifest>(SmallModel())) {}

void Simulation::Run() {
  StartSynchronizer();
  StartTrainer();
  for (int i = 0; i < options_.rollouters; ++i) {
    rollouters_[i] = Start(RollouterId(i, absl::StrCat("r", next_incarnation_++)));
  }
  if (options_.stop_one_at.has_value()) After(*options_.stop_one_at, [this] { Stop(rollouters_[0], 20); });
  if (options_.join_one_at.has_value()) {
    After(*options_.join_one_at, [this] {
      const int index = options_.rollouters;
      rollouters_[index] = Start(RollouterId(index, absl::StrCat("r", next_incarnation_++)));
      // What it waits for is no delay of the others.
      if (options_.adapters) disturbed_.insert(rollouters_[index]->id.replica_id);
    });
  }
  if (options_.damage_one_at.has_value()) {
    After(*options_.damage_one_at, [this] { rollouters_[0]->damaged = true; });
  }
  if (options_.trigger_at.has_value()) After(*options_.trigger_at, [this] { Trigger(); });
  if (options_.disk_full_at.has_value()) After(*options_.disk_full_at, [this] { FillDisk(20); });
  if (options_.faults.disk) {
    for (double at = Uniform(3, 8); at < options_.fault_seconds; at += Uniform(5, 15)) {
      After(at, [this] { FillDisk(Uniform(0.5, 12)); });
    }
  }
  After(Uniform(1, 5), [this] { InjectFault(); });
  After(options_.fault_seconds, [this] { Heal(); });
  while (!events_.empty() && events_.begin()->first.first <= options_.end_seconds) {
    auto event = events_.extract(events_.begin());
    now_ = event.key().first;
    event.mapped()();
  }
  CheckEnd();
}

void Simulation::At(double time, std::function<void()> action) { events_[{time, sequence_++}] = std::move(action); }

void Simulation::After(double seconds, std::function<void()> action) { At(now_ + seconds, std::move(action)); }

void Simulation::Violate(const std::string& what) {
  violations_.push_back(absl::StrFormat("seed %d, %.3f s: %s", options_.seed, now_, what));
}

// The network.

void Simulation::Up(SessionId session, PostedEvents::Kind kind, std::function<void()> at_synchronizer) {
  Stream& stream = streams_[session];
  double arrival = stream.last_up = std::max(stream.last_up, now_ + Uniform(0, kMaxDelay));
  At(arrival, [this, session, kind, at_synchronizer = std::move(at_synchronizer)] {
    if (streams_[session].broken || !plane_.has_value()) return;
    auto event = [this, session, at_synchronizer] {
      if (!streams_[session].broken) at_synchronizer();
    };
    OnSynchronizer({event, kind, session});
  });
}

void Simulation::Down(SessionId session, const Command& command) {
  Stream& stream = streams_[session];
  double arrival = stream.last_down = std::max(stream.last_down, now_ + Uniform(0, kMaxDelay));
  At(arrival, [this, session, command] {
    Stream& stream = streams_[session];
    if (stream.broken) return;
    NodePtr node = stream.node;
    OnNode(node, [this, node, session, command] { OnCommand(node, session, command); });
  });
}

void Simulation::Break(SessionId session) {
  Stream& stream = streams_[session];
  if (stream.broken) return;
  stream.broken = true;
  NodePtr node = stream.node;
  After(Uniform(0, 2),
        [this, node, session] { OnNode(node, [this, node, session] { NodeLostStream(node, session); }); });
  After(Uniform(0, 2), [this, session, life = plane_life_] {
    if (!plane_.has_value() || plane_life_ != life) return;
    OnSynchronizer({[this, session] { plane_->OnStreamBroken(session, Time()); }, PostedEvents::Kind::kEnd, session});
  });
}

// The synchronizer.

void Simulation::StartSynchronizer() {
  ControlPlane::Options options;
  options.run_id = "run";
  options.sync.transport = options_.group_transport ? "nccl" : "grpc";
  if (!options_.rehearse) options.sync.rehearse_after = absl::InfiniteDuration();
  options.sync.first_attempt = static_cast<int64_t>(++plane_life_) * 1000000;
  auto plane = ControlPlane::Restore(options, disk_);
  if (!plane.ok()) return Violate("cannot start from its own records: " + plane.status().ToString());
  plane_.emplace(*std::move(plane));
  next_tick_ = -1;
  CarryOut();
}

void Simulation::CrashSynchronizer(double down_seconds) {
  if (!plane_.has_value()) return;
  plane_.reset();
  plane_held_.clear();
  plane_stopped_until_ = 0;
  unwritten_.clear();  // no member has learned of it
  unwritten_then_ = nullptr;
  posted_ = PostedEvents();
  for (auto& [session, stream] : streams_) Break(session);
  After(down_seconds, [this] { StartSynchronizer(); });
}

void Simulation::OnSynchronizer(Incoming incoming) {
  if (plane_stopped_until_ > now_) {
    plane_held_.push_back([this, incoming = std::move(incoming)] { OnSynchronizer(incoming); });
    return;
  }
  if (posted_.blocked()) {
    PostedEvents::Posted posted{[this, incoming](ControlPlane&, absl::Time) { OnSynchronizer(incoming); }, nullptr,
                                incoming.session, incoming.kind};
    if (incoming.refused) posted.then = [refused = incoming.refused](const absl::Status&) { refused(); };
    if (!posted_.Add(std::move(posted))) incoming.refused();
    return;
  }
  incoming.event();
  CarryOut(std::move(incoming.then));
}

void Simulation::CarryOut(std::function<void()> then) {
  std::vector<Action> actions = plane_->TakeActions();
  for (size_t i = 0; i < actions.size(); ++i) {
    if (std::holds_alternative<Persist>(actions[i]) && disk_full_until_ > now_) {
      return Block({actions.begin() + static_cast<std::ptrdiff_t>(i), actions.end()}, std::move(then));
    }
    Perform(actions[i]);
  }
  ScheduleTick();
  if (then) then();
}

void Simulation::Block(std::vector<Action> actions, std::function<void()> then) {
  ++blocked_;
  blocked_since_ = now_;
  unwritten_ = std::move(actions);
  unwritten_then_ = std::move(then);
  posted_.Block({});
  After(1, [this, life = plane_life_] { RetryWrite(life); });
}

void Simulation::RetryWrite(uint64_t life) {
  if (!plane_.has_value() || plane_life_ != life) return;
  if (plane_stopped_until_ > now_ || disk_full_until_ > now_) return After(1, [this, life] { RetryWrite(life); });
  plane_->OnBlocked(absl::Seconds(now_ - blocked_since_), Time());
  for (const Action& action : std::exchange(unwritten_, {})) Perform(action);
  posted_.Unblock();
  ScheduleTick();
  if (auto then = std::exchange(unwritten_then_, nullptr); then) then();
  for (const PostedEvents::Posted& posted : posted_.Take()) {
    if (plane_.has_value() && plane_life_ == life) posted.event(*plane_, Time());
  }
}

void Simulation::FillDisk(double seconds) {
  for (const auto& [index, node] : rollouters_) disturbed_.insert(node->id.replica_id);
  disk_full_until_ = now_ + seconds;
}

void Simulation::Perform(const Action& action) {
  if (const auto* send = std::get_if<SendCommand>(&action)) {
    trace_hash_ = HashCombine(trace_hash_,
                              HashText(absl::StrFormat("%.9f send %d %d", now_, send->session, send->command.index())));
    Down(send->session, send->command);
  } else if (const auto* close = std::get_if<CloseSession>(&action)) {
    trace_hash_ = HashCombine(trace_hash_, HashText(close->status.ToString()));
    NodePtr node = streams_[close->session].node;
    bool final = close->status.code() == absl::StatusCode::kFailedPrecondition;
    if (ErrorReason(close->status) == "FENCED" || final) {
      After(kMaxDelay, [this, node] { OnNode(node, [this, node] { Kill(node); }); });
    }
    After(kMaxDelay, [this, session = close->session] { Break(session); });
  } else if (const auto* persist = std::get_if<Persist>(&action)) {
    disk_.push_back(persist->record);
  } else if (const auto* ended = std::get_if<SyncEnded>(&action)) {
    Note(ended->record);
  }
}

void Simulation::Note(const SyncRecord& record) {
  trace_hash_ = HashCombine(trace_hash_, HashText(record.replica_id + record.result() + record.version.ToString()));
  if (record.failed()) ++failures_;
  if (record.result() == kConnected) ++connected_;
  if (record.result() == kNotConnected) ++not_connected_;
  if (record.rehearsal() && (record.bytes != 0 || !record.version.IsNone())) Violate("a rehearsal moved something");
  if (record.superseded()) ++superseded_;
  if (record.result() == "relabelled") ++relabels_;
  if (record.result() == "GROUP_LOST") ++groups_lost_;
  if (record.result() == "NOT_PREPARED") ++not_prepared_;
  bool lost = record.result() == "DECLARED_DEAD" || record.result() == "DISCONNECTED" || record.result() == "REPLACED";
  bool transferred = record.seconds.transfer > 0;
  if (lost) ++lost_[record.seconds.install > 0 ? 2 : transferred ? 1 : 0];
  double sum = -2 * record.seconds.total;
  for (const auto& [stage, seconds] : kStages) sum += record.seconds.*seconds;
  if (std::abs(sum) > 1e-6) Violate("the phases of a sync do not add up to its total");
}

void Simulation::ScheduleTick() {
  absl::Time deadline = plane_->NextDeadline();
  if (deadline == absl::InfiniteFuture()) return;
  double at = std::max(now_, absl::ToDoubleSeconds(deadline - absl::UnixEpoch()));
  if (next_tick_ >= now_ && next_tick_ <= at) return;  // a tick is scheduled, and not too late
  next_tick_ = at;
  At(at, [this, at, life = plane_life_] {
    if (!plane_.has_value() || plane_life_ != life || next_tick_ != at) return;
    next_tick_ = -1;
    if (posted_.blocked()) return;  // the tick is requested again when there is room
    OnSynchronizer({[this] {
      plane_->Tick(Time());
      for (const auto& [id, attempt] : plane_->coordinator().attempts()) {
        if (attempt.spec().deadline <= Time()) Violate("an attempt outlived its deadline");
        if (attempt.NextDeadline() <= Time()) Violate("a barrier outlived its deadline");
      }
    }});
  });
}

// Faults.

void Simulation::InjectFault() {
  if (now_ >= options_.fault_seconds) return;
  After(Uniform(0.2, 4), [this] { InjectFault(); });
  NodePtr victim = rollouters_[static_cast<int>(Uniform(0, options_.rollouters - 0.001))];
  const bool more = options_.faults.sleeps || options_.faults.damage;
  switch (static_cast<int>(Uniform(0, more ? 8 : 5))) {
    case 0:
      if (options_.faults.breaks && victim->session != 0) {
        disturbed_.insert(victim->id.replica_id);
        Break(victim->session);
      }
      break;
    case 1:
      if (options_.faults.kills && victim->alive) {
        Kill(victim);
        int index = victim->id.replica_id.back() - '0';
        After(Uniform(0.1, 8), [this, index] {
          rollouters_[index] = Start(RollouterId(index, absl::StrCat("r", next_incarnation_++)));
        });
      }
      break;
    case 2:
      if (options_.faults.stalls) Stop(victim, Uniform(0.5, 30));
      break;
    case 3:
      if (!options_.faults.trainer) break;
      for (const auto& [index, node] : rollouters_) disturbed_.insert(node->id.replica_id);
      if (Chance(0.3)) {
        std::vector<NodePtr> ranks = GetRanks(trainer_);
        return Stop(ranks[random_() % ranks.size()], Uniform(0.5, 15));
      }
      // Otherwise a second trainer is started beside it. Of two that were never welcomed, either may win.
      if (Chance(0.7) || trainer_->epoch == 0) Kill(trainer_);
      if (!trainer_->bits.empty()) {
        auto kept = std::prev(trainer_->bits.end(),
                              static_cast<int>(Uniform(1, std::min(3, static_cast<int>(trainer_->bits.size())))));
        std::tie(checkpoint_step_, checkpoint_bits_) = *kept;
      }
      StartTrainer();
      // The launcher starts twice: of two starts whose ranks arrive together, either may win as a whole.
      if (options_.trainer_ranks > 1 && Chance(0.3)) StartTrainer();
      break;
    case 4:
      if (!options_.faults.synchronizer || !plane_.has_value()) break;
      for (const auto& [index, node] : rollouters_) disturbed_.insert(node->id.replica_id);
      if (Chance(0.6)) return CrashSynchronizer(Uniform(0.05, 6));
      plane_stopped_until_ = now_ + Uniform(0.5, 20);
      After(plane_stopped_until_ - now_, [this] {
        for (auto& event : std::exchange(plane_held_, {})) {
          if (plane_.has_value()) event();
        }
      });
      break;
    case 5:
      if (options_.faults.sleeps) FallAsleep(victim, Chance(0.5) ? 1 : 2, Uniform(0.2, 5));
      break;
    case 6:
      if (options_.faults.damage && victim->base != 0) {
        disturbed_.insert(victim->id.replica_id);
        victim->damaged = true;
      }
      break;
    default:
      Trigger();
      break;
  }
}

void Simulation::Trigger() {
  if (!plane_.has_value()) return;
  OnSynchronizer({[this] { plane_->OnTrigger(Time()).IgnoreError(); }});
}

void Simulation::Heal() {
  auto wake = [this](const NodePtr& node) {
    if (node->stopped_until <= now_) return;
    node->stopped_until = now_;
    for (auto& action : std::exchange(node->held, {})) {
      if (node->alive) action();
    }
  };
  disk_full_until_ = std::min(disk_full_until_, now_);
  for (const NodePtr& node : trainers_) wake(node);
  for (const auto& [index, node] : rollouters_) {
    wake(node);
    WakeUp(node);
  }
  if (plane_stopped_until_ > now_) {
    plane_stopped_until_ = now_;
    for (auto& event : std::exchange(plane_held_, {})) {
      if (plane_.has_value()) event();
    }
  }
}

void Simulation::CheckLag(PolicyVersion version, double published) {
  for (const auto& [index, node] : rollouters_) {
    std::string replica = node->id.replica_id;
    if (disturbed_.count(replica) > 0 || !node->welcomed) continue;
    auto look = std::make_shared<std::function<void()>>();
    *look = [this, node = node, replica, version, published, look] {
      bool over = disturbed_.count(replica) > 0 || node->serving >= version || now_ - published > 5;
      if (disturbed_.count(replica) == 0) {
        worst_lag_ = std::max(worst_lag_, now_ - published);
        if (now_ - published > 0.2) late_.insert(version);
      }
      if (over) {
        *look = nullptr;
      } else {
        After(0.01, [look] { (*look)(); });
      }
    };
    After(0.01, [look] { (*look)(); });
  }
}

void Simulation::CheckEnd() {
  if (!plane_.has_value()) return Violate("the synchronizer did not come back");
  const PublishedVersion* newest = plane_->ledger().newest();
  if (newest == nullptr) return Violate("nothing was ever published");
  if (!trainer_->alive) return Violate("the newest trainer was fenced");
  if (newest->version.epoch != trainer_->epoch) Violate("the newest version is not the newest trainer's");
  for (const auto& [index, node] : rollouters_) {
    if (!node->alive) Violate("a rollouter was never started again");
    if (node->damaged) Violate("a rollouter serves weights that have changed in its memory");
    if (node->base != base_of_[node->serving]) Violate("adapters are served on another base than their own");
    if (node->serving != newest->version) {
      Violate(absl::StrFormat("30 s after the last fault %s serves %s, not %s", node->id.replica_id,
                              node->serving.ToString(), newest->version.ToString()));
    }
  }
  for (const NodePtr& rank : GetRanks(trainer_)) {
    if (!rank->pins.empty()) Violate("a source holds a version for an attempt that has ended");
  }
  if (!plane_->coordinator().attempts().empty()) Violate("an attempt never ends");
  for (const auto& [index, node] : rollouters_) {
    if (node->rehearsal != 0) Violate("a receiver connects for a rehearsal that has ended");
  }
  for (const NodePtr& node : trainers_) {
    bool older = node->id.incarnation != trainer_->id.incarnation;
    if (older && node->alive) Violate("an older trainer was never fenced");
  }
}

}  // namespace syncopate::synchronizer
