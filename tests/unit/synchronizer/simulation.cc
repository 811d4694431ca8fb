#include "tests/unit/synchronizer/simulation.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/digest.h"
#include "tests/support/synchronizer_fixtures.h"

namespace syncopate::synchronizer {
namespace {

constexpr double kMaxDelay = 0.005;
constexpr size_t kSlots = 2;

uint64_t HashText(const std::string& text) { return DigestBytes(text.data(), static_cast<int64_t>(text.size())); }

}  // namespace

Simulation::Simulation(const Options& options)
    : options_(options), random_(options.seed), model_(std::make_shared<Manifest>(SmallModel())) {}

void Simulation::Run() {
  StartSynchronizer();
  trainer_ = Start(TrainerId(absl::StrCat("t", next_incarnation_++)));
  for (int i = 0; i < options_.rollouters; ++i) {
    rollouters_[i] = Start(RollouterId(i, absl::StrCat("r", next_incarnation_++)));
  }
  if (options_.stop_one_at.has_value()) After(*options_.stop_one_at, [this] { Stop(rollouters_[0], 20); });
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

// Processes.

Simulation::NodePtr Simulation::Start(const MemberId& id) {
  auto node = std::make_shared<Node>();
  node->id = id;
  if (id.role == kTrainerRole) {
    node->step = checkpoint_step_;
    node->restored = checkpoint_bits_ != 0;
    trainers_.push_back(node);
  }
  Connect(node);
  return node;
}

void Simulation::OnNode(const NodePtr& node, std::function<void()> action) {
  if (!node->alive) return;
  if (node->stopped_until > now_) {
    node->held.push_back(std::move(action));
  } else {
    action();
  }
}

void Simulation::Stop(const NodePtr& node, double seconds) {
  if (!node->alive || node->stopped_until > now_) return;
  disturbed_.insert(node->id.replica_id);
  node->stopped_until = now_ + seconds;
  After(seconds, [node] {
    for (auto& action : std::exchange(node->held, {})) {
      if (node->alive) action();
    }
  });
}

void Simulation::Kill(const NodePtr& node) {
  disturbed_.insert(node->id.replica_id);
  node->alive = false;
  if (node->session != 0) Break(node->session);
}

void Simulation::Connect(const NodePtr& node) {
  node->welcomed = false;
  SessionId session = node->session = next_session_++;
  streams_[session].node = node;
  if (!plane_.has_value()) return Break(session);
  Hello hello = HelloOf(node->id, model_);
  hello.serving = node->serving;
  hello.serving_digest = node->serving_digest;
  hello.held_epoch = node->epoch;
  hello.checkpoint_epoch = checkpoint_epoch_;
  Up(session, [this, session, hello] { plane_->OnHello(session, hello, Time()); });
  // A hello that nobody answers is given up.
  After(5, [this, node, session] {
    if (node->session == session && !node->welcomed) Break(session);
  });
}

void Simulation::NodeLostStream(const NodePtr& node, SessionId session) {
  if (node->session != session) return;
  node->session = 0;
  node->attempt = 0;
  node->pins.clear();
  After(Uniform(0.05, 1), [this, node] {
    OnNode(node, [this, node] {
      if (node->session == 0) Connect(node);
    });
  });
}

void Simulation::Beat(const NodePtr& node, SessionId session) {
  if (node->session != session) return;
  PolicyVersion serving = node->serving;
  uint64_t digest = node->serving_digest;
  Up(session, [this, session, serving, digest] { plane_->OnHeartbeat(session, serving, digest, Time()); });
  After(1, [this, node, session] { OnNode(node, [this, node, session] { Beat(node, session); }); });
}

void Simulation::Publish(const NodePtr& trainer) {
  if (now_ > options_.publish_seconds) return;
  After(options_.publish_every * Uniform(0.5, 1.5),
        [this, trainer] { OnNode(trainer, [this, trainer] { Publish(trainer); }); });
  if (trainer->publishing) return;
  PolicyVersion version{trainer->epoch, trainer->step++};
  // A restored trainer's first version has the bits of the checkpoint it started from.
  uint64_t bits = random_();
  if (std::exchange(trainer->restored, false)) bits = checkpoint_bits_;
  trainer->bits[version.step] = bits;
  std::vector<uint64_t> digests(model_->buckets().size(), bits);
  truth_[version] = CombineDigests(digests);
  trainer->staged.push_back(version);
  if (trainer->staged.size() > kSlots) trainer->staged.pop_front();
  if (Chance(0.05)) {
    checkpoint_epoch_ = std::max(checkpoint_epoch_, version.epoch);
  }
  trainer->publishing = true;
  SendPublication(trainer, {trainer->id, version, digests, model_->fingerprint(), 0.001, now_});
}

void Simulation::SendPublication(const NodePtr& trainer, const ControlPlane::Publication& publication) {
  auto retry = [this, trainer, publication] {
    OnNode(trainer, [this, trainer, publication] { SendPublication(trainer, publication); });
  };
  bool lost = options_.faults.breaks && now_ < options_.fault_seconds && Chance(0.1);
  if (!plane_.has_value() || lost) return After(0.3, retry);
  uint64_t life = plane_life_;
  bool answer_lost = options_.faults.breaks && now_ < options_.fault_seconds && Chance(0.1);
  After(Uniform(0, kMaxDelay), [this, trainer, publication, life, answer_lost, retry] {
    if (!plane_.has_value() || plane_life_ != life) return After(0.3, retry);
    OnSynchronizer([this, trainer, publication, answer_lost, retry] {
      absl::StatusOr<int> published = plane_->OnPublish(publication, Time());
      std::string reason = ErrorReason(published.status());
      int64_t newest_epoch = epoch_owner_.empty() ? 0 : epoch_owner_.rbegin()->first;
      if (published.ok() && publication.version.epoch < newest_epoch) Violate("a fenced trainer published");
      if (!published.ok() && reason != "FENCED" && reason != "NOT_JOINED") {
        Violate("refused a good publication: " + published.status().ToString());
      }
      if (published.ok()) CheckLag(publication.version, now_);
      if (answer_lost || reason == "NOT_JOINED") return After(0.3, retry);
      After(Uniform(0, kMaxDelay), [this, trainer, reason] {
        OnNode(trainer, [this, trainer, reason] {
          trainer->publishing = false;
          if (reason == "FENCED") Kill(trainer);
        });
      });
    });
  });
}

void Simulation::OnCommand(const NodePtr& node, SessionId session, const Command& command) {
  if (node->session != session) return;
  if (const auto* welcome = std::get_if<Welcome>(&command)) {
    if (node->welcomed) Violate("welcomed twice on one stream");
    node->welcomed = true;
    Beat(node, session);
    if (node->id.role != kTrainerRole || node->epoch != 0) return;
    node->epoch = welcome->epoch;
    auto [owner, fresh] = epoch_owner_.emplace(welcome->epoch, node->id.incarnation);
    if (!fresh && owner->second != node->id.incarnation) Violate("an epoch was given to two trainers");
    Publish(node);
    return;
  }
  if (!node->welcomed) Violate("a command came before the welcome");
  if (const auto* prepare = std::get_if<Prepare>(&command)) return OnPrepare(node, session, *prepare);
  if (const auto* transfer = std::get_if<Transfer>(&command)) return OnTransfer(node, session, *transfer);
  if (const auto* install = std::get_if<Install>(&command)) return OnInstall(node, session, *install);
  if (const auto* finish = std::get_if<Finish>(&command)) {
    node->pins.erase(finish->attempt);
    if (node->attempt == finish->attempt) node->attempt = 0;
  }
  if (std::holds_alternative<Evicted>(command)) Kill(node);
}

void Simulation::OnPrepare(const NodePtr& node, SessionId session, const Prepare& prepare) {
  SyncReport report;
  report.attempt = prepare.attempt;
  report.stage = SyncStage::kPrepare;
  if (prepare.source) {
    bool staged = std::count(node->staged.begin(), node->staged.end(), prepare.version) > 0;
    if (staged) node->pins.insert(prepare.attempt);
    if (!staged) report.status = Error(absl::StatusCode::kNotFound, "VERSION_NOT_STAGED", "gone");
    report.rendezvous = "trainer";
    return Report(node, session, report);
  }
  if (node->attempt != 0) Violate("a receiver was given a second attempt");
  if (prepare.version <= node->serving) Violate("a receiver was offered an old version");
  node->attempt = prepare.attempt;
  node->stage = SyncStage::kPrepare;
  node->offered = prepare.version;
  node->offered_digest = prepare.digest;
  node->shadow_verified = report.already_held = node->serving_digest == prepare.digest;
  if (options_.faults.refusals && now_ < options_.fault_seconds && Chance(0.05)) {
    report.status = Error(absl::StatusCode::kUnavailable, "BUSY", "not now");
  }
  After(Uniform(0, 0.002), [this, node, session, report] {
    OnNode(node, [this, node, session, report] { Report(node, session, report); });
  });
}

void Simulation::OnTransfer(const NodePtr& node, SessionId session, const Transfer& transfer) {
  if (node->id.role == kTrainerRole) {
    if (node->pins.count(transfer.attempt) == 0) Violate("a source was told to send what it was not asked to prepare");
    SyncReport report;
    report.attempt = transfer.attempt;
    report.stage = SyncStage::kTransfer;
    return Report(node, session, report);
  }
  if (transfer.attempt != node->attempt) return Violate("a transfer of an attempt that was not prepared");
  if (transfer.sources.size() != 1 || transfer.sources[0].rendezvous != "trainer") Violate("no rendezvous");
  node->stage = SyncStage::kTransfer;
  NodePtr source = trainer_;
  int64_t attempt = transfer.attempt;
  After(Uniform(0.01, 0.05),
        [this, node, session, attempt, source] { FinishTransfer(node, session, attempt, source); });
}

void Simulation::FinishTransfer(const NodePtr& node, SessionId session, int64_t attempt, const NodePtr& source) {
  if (source->alive && source->stopped_until > now_) {  // bytes come when it is continued
    return After(source->stopped_until - now_ + 0.01,
                 [this, node, session, attempt, source] { FinishTransfer(node, session, attempt, source); });
  }
  OnNode(node, [this, node, session, attempt, source] {
    if (node->session != session || node->attempt != attempt) return;
    SyncReport report;
    report.attempt = attempt;
    report.stage = SyncStage::kTransfer;
    report.bytes = model_->weight_bytes();
    bool staged = std::count(source->staged.begin(), source->staged.end(), node->offered) > 0;
    if (!source->alive) {
      report.status = Error(absl::StatusCode::kUnavailable, "PEER_LOST", "reset");
    } else if (!staged) {
      report.status = Error(absl::StatusCode::kAborted, "SUPERSEDED", "the slot was needed");
    } else if (options_.faults.refusals && now_ < options_.fault_seconds && Chance(0.05)) {
      report.status = Error(absl::StatusCode::kDataLoss, "DIGEST_MISMATCH", "a bit flipped");
    }
    node->shadow_verified = report.status.ok();
    Report(node, session, report);
  });
}

void Simulation::OnInstall(const NodePtr& node, SessionId session, const Install& install) {
  if (install.attempt != node->attempt || !node->shadow_verified) {
    return Violate("an install of something that was not verified");
  }
  After(Uniform(0, 0.003), [this, node, session, attempt = install.attempt] {
    OnNode(node, [this, node, session, attempt] {
      if (node->session != session || node->attempt != attempt) return;
      if (node->offered <= node->serving) Violate("the serving version went back");
      if (node->offered_digest != truth_.at(node->offered)) Violate("wrong bits under a version");
      node->serving = node->offered;
      node->serving_digest = node->offered_digest;
      ++installs_;
      SyncReport report;
      report.attempt = attempt;
      report.stage = SyncStage::kInstall;
      Report(node, session, report);
    });
  });
}

void Simulation::Report(const NodePtr& node, SessionId session, SyncReport report) {
  if (node->session != session) return;
  Up(session, [this, session, report] { plane_->OnReport(session, report, Time()); });
}

// The network.

void Simulation::Up(SessionId session, std::function<void()> at_synchronizer) {
  Stream& stream = streams_[session];
  double arrival = stream.last_up = std::max(stream.last_up, now_ + Uniform(0, kMaxDelay));
  At(arrival, [this, session, at_synchronizer = std::move(at_synchronizer)] {
    if (streams_[session].broken || !plane_.has_value()) return;
    OnSynchronizer([this, session, at_synchronizer] {
      if (!streams_[session].broken) at_synchronizer();
    });
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
    OnSynchronizer([this, session] { plane_->OnStreamBroken(session, Time()); });
  });
}

// The synchronizer.

void Simulation::StartSynchronizer() {
  ControlPlane::Options options;
  options.run_id = "run";
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
  for (auto& [session, stream] : streams_) Break(session);
  After(down_seconds, [this] { StartSynchronizer(); });
}

void Simulation::OnSynchronizer(std::function<void()> event) {
  if (plane_stopped_until_ > now_) {
    plane_held_.push_back(std::move(event));
    return;
  }
  event();
  CarryOut();
}

void Simulation::CarryOut() {
  for (const Action& action : plane_->TakeActions()) {
    if (const auto* send = std::get_if<SendCommand>(&action)) {
      trace_hash_ = HashCombine(
          trace_hash_, HashText(absl::StrFormat("%.9f send %d %d", now_, send->session, send->command.index())));
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
      const SyncRecord& record = ended->record;
      trace_hash_ = HashCombine(trace_hash_, HashText(record.replica_id + record.result + record.version.ToString()));
      if (!record.ok()) ++failures_;
      if (record.result == "relabelled") ++relabels_;
      double sum = 0;
      for (const auto& [phase, seconds] : record.seconds) sum += phase == "total" ? -seconds : seconds;
      if (std::abs(sum) > 1e-6) Violate("the phases of a sync do not add up to its total");
    }
  }
  ScheduleTick();
}

void Simulation::ScheduleTick() {
  absl::Time deadline = plane_->NextDeadline();
  if (deadline == absl::InfiniteFuture()) return;
  double at = std::max(now_, absl::ToDoubleSeconds(deadline - absl::UnixEpoch()));
  if (next_tick_ >= now_ && next_tick_ <= at) return;  // one is under way, not too late
  next_tick_ = at;
  At(at, [this, at, life = plane_life_] {
    if (!plane_.has_value() || plane_life_ != life || next_tick_ != at) return;
    next_tick_ = -1;
    OnSynchronizer([this] {
      plane_->Tick(Time());
      for (const auto& [id, attempt] : plane_->coordinator().attempts()) {
        if (attempt.spec().deadline <= Time()) Violate("an attempt outlived its deadline");
      }
    });
  });
}

// Faults.

void Simulation::InjectFault() {
  if (now_ >= options_.fault_seconds) return;
  After(Uniform(0.2, 4), [this] { InjectFault(); });
  NodePtr victim = rollouters_[static_cast<int>(Uniform(0, options_.rollouters - 0.001))];
  switch (static_cast<int>(Uniform(0, 5))) {
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
      if (Chance(0.3)) return Stop(trainer_, Uniform(0.5, 15));
      // Otherwise a second one is started beside it. Of two that were never welcomed either may win.
      if (Chance(0.7) || trainer_->epoch == 0) Kill(trainer_);
      if (!trainer_->bits.empty()) {
        auto kept =
            std::prev(trainer_->bits.end(), static_cast<int>(Uniform(1, std::min<int>(3, trainer_->bits.size()))));
        std::tie(checkpoint_step_, checkpoint_bits_) = *kept;
      }
      trainer_ = Start(TrainerId(absl::StrCat("t", next_incarnation_++)));
      break;
    case 4:
      if (!options_.faults.synchronizer || !plane_.has_value()) break;
      for (const auto& [index, node] : rollouters_) disturbed_.insert(node->id.replica_id);
      if (Chance(0.6)) return CrashSynchronizer(Uniform(0.05, 6));
      plane_stopped_until_ = now_ + Uniform(0.5, 20);
      After(plane_stopped_until_ - now_, [this] {
        for (auto& event : std::exchange(plane_held_, {})) {
          if (plane_.has_value()) OnSynchronizer(std::move(event));
        }
      });
      break;
  }
}

void Simulation::Heal() {
  auto wake = [this](const NodePtr& node) {
    if (node->stopped_until <= now_) return;
    node->stopped_until = now_;
    for (auto& action : std::exchange(node->held, {})) {
      if (node->alive) action();
    }
  };
  for (const NodePtr& node : trainers_) wake(node);
  for (const auto& [index, node] : rollouters_) wake(node);
  if (plane_stopped_until_ > now_) {
    plane_stopped_until_ = now_;
    for (auto& event : std::exchange(plane_held_, {})) {
      if (plane_.has_value()) OnSynchronizer(std::move(event));
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
    if (node->serving != newest->version) {
      Violate(absl::StrFormat("30 s after the last fault %s serves %s, not %s", node->id.replica_id,
                              node->serving.ToString(), newest->version.ToString()));
    }
  }
  if (!trainer_->pins.empty()) Violate("a source holds a version for an attempt that has ended");
  if (plane_->coordinator().attempts_under_way() != 0) Violate("an attempt never ends");
  for (const NodePtr& node : trainers_) {
    if (node != trainer_ && node->alive) Violate("an older trainer was never fenced");
  }
}

}  // namespace syncopate::synchronizer
