#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "synchronizer/attempts/sync_attempt.h"
#include "tests/support/synchronizer_fixtures.h"
#include "tests/unit/synchronizer/simulation.h"

// The processes of the simulation: trainers and rollouters, and how they carry out commands.
namespace syncopate::synchronizer {

Simulation::NodePtr Simulation::Start(const MemberId& id) {
  auto node = std::make_shared<Node>();
  node->id = id;
  if (id.role == kTrainerRole) {
    node->step = checkpoint_step_;
    node->restored = checkpoint_bits_ != 0;
    if (options_.adapters) node->base = newest_base_;
    trainers_.push_back(node);
  }
  Connect(node);
  return node;
}

void Simulation::StartTrainer() {
  // Adapters of another base have no checkpoint.
  if (options_.adapters && options_.faults.trainer && !trainers_.empty() && Chance(0.3)) {
    ++newest_base_;
    checkpoint_bits_ = 0;
  }
  const std::string incarnation = absl::StrCat("t", next_incarnation_++);
  for (int32_t rank = options_.trainer_ranks - 1; rank >= 0; --rank) {
    trainer_ = Start(TrainerId(incarnation, rank, options_.trainer_ranks));
  }
}

std::vector<Simulation::NodePtr> Simulation::GetRanks(const NodePtr& trainer) const {
  std::vector<NodePtr> ranks;
  for (const NodePtr& node : trainers_) {
    if (node->id.incarnation == trainer->id.incarnation) ranks.push_back(node);
  }
  return ranks;
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
  if (!node->alive) return;
  disturbed_.insert(node->id.replica_id);
  node->alive = false;
  if (node->session != 0) Break(node->session);
  if (node->id.world == 1) return;
  for (const NodePtr& rank : GetRanks(node)) Kill(rank);  // the ranks of a trainer fail together
  // Ranks of one start that a restart of the synchronizer has separated fence each other: their supervisor starts them
  // again.
  if (node->id.incarnation != trainer_->id.incarnation || node->id.rank != 0) return;
  After(Uniform(0.5, 2), [this, node] {
    if (node->id.incarnation == trainer_->id.incarnation) StartTrainer();
  });
}

void Simulation::Connect(const NodePtr& node) {
  node->welcomed = false;
  SessionId session = node->session = next_session_++;
  streams_[session].node = node;
  if (!plane_.has_value()) return Break(session);
  Hello hello = HelloFor(node->id, model_);
  hello.serving = node->serving;
  hello.serving_digest = node->serving_digest;
  hello.held = node->asleep ? "ASLEEP" : "";
  if (node->id.role == kRollouterRole) hello.base_digest = ClaimedBase(node);
  hello.held_epoch = node->epoch;
  hello.checkpoint_epoch = checkpoint_epoch_;
  if (node->id.role == kTrainerRole) hello.start = node->id.incarnation;  // all ranks of a start have this in common
  hello.transports = {"grpc", "nccl"};
  Up(session, PostedEvents::Kind::kHello, [this, session, hello] { plane_->OnHello(session, hello, Time()); });
  // A hello without an answer is given up after five seconds.
  After(5, [this, node, session] {
    if (node->session == session && !node->welcomed) Break(session);
  });
}

void Simulation::NodeLostStream(const NodePtr& node, SessionId session) {
  if (node->session != session) return;
  node->session = 0;
  node->attempt = 0;
  node->pins.clear();
  EndRehearsal(node);
  After(Uniform(0.05, 1), [this, node] {
    OnNode(node, [this, node] {
      if (node->session == 0) Connect(node);
    });
  });
}

void Simulation::Beat(const NodePtr& node, SessionId session) {
  if (node->session != session) return;
  SendHeartbeat(node, session);
  After(1, [this, node, session] { OnNode(node, [this, node, session] { Beat(node, session); }); });
}

void Simulation::SendHeartbeat(const NodePtr& node, SessionId session) {
  if (session == 0 || node->session != session || !node->welcomed) return;
  PolicyVersion serving = node->serving;
  uint64_t digest = node->serving_digest;
  const std::string held = node->asleep ? "ASLEEP" : "";
  const uint64_t base = node->id.role == kRollouterRole ? ClaimedBase(node) : 0;
  Up(session, PostedEvents::Kind::kHeartbeat, [this, session, serving, digest, held, base] {
    plane_->OnHeartbeat(session, serving, digest, Time(), held, base);
  });
}

uint64_t Simulation::ClaimedBase(const NodePtr& node) const {
  if (options_.mutant == Mutant::kForgetsBase) return 0;
  if (options_.mutant == Mutant::kForgetsSleep) return node->known_base;
  ReceiverWeights weights = node->sleep;
  weights.base_present = true;
  return NeedsBase(weights) ? 0 : node->known_base;
}

// A sleep begins when the attempt under way has ended, and none begins before it.
void Simulation::FallAsleep(const NodePtr& node, int level, double seconds) {
  if (!node->alive || node->stopped_until > now_ || node->asleep) return;
  disturbed_.insert(node->id.replica_id);
  node->drowsy = node->attempt != 0;
  if (node->drowsy) return After(0.02, [this, node, level, seconds] { FallAsleep(node, level, seconds); });
  node->asleep = true;
  node->sleep = AfterSleep(node->sleep, level);
  if (level == 2) {
    node->base = 0;
    node->damaged = false;
    node->serving = PolicyVersion();
    node->serving_digest = 0;
  }
  SendHeartbeat(node, node->session);
  After(seconds, [this, node] {
    OnNode(node, [this, node] {
      if (!node->asleep) return;
      WakeUp(node);
      // Some sleep again before they can have been sent anything.
      if (now_ < options_.fault_seconds && Chance(0.3)) FallAsleep(node, Chance(0.5) ? 1 : 2, Uniform(0.2, 2));
    });
  });
}

void Simulation::WakeUp(const NodePtr& node) {
  node->drowsy = false;
  if (!node->alive || !std::exchange(node->asleep, false)) return;
  SendHeartbeat(node, node->session);
}

void Simulation::Stage(const NodePtr& rank, const PolicyVersion& version) {
  if (rank->staged.size() == kSlots) {
    auto is_read = [&rank](const PolicyVersion& staged) {
      return std::any_of(rank->pins.begin(), rank->pins.end(), [&](const auto& pin) { return pin.second == staged; });
    };
    const auto unread = std::find_if_not(rank->staged.begin(), rank->staged.end(), is_read);
    rank->staged.erase(unread == rank->staged.end() ? rank->staged.begin() : unread);
  }
  rank->staged.push_back(version);
}

void Simulation::Publish(const NodePtr& trainer) {
  if (now_ > options_.publish_seconds) return;
  After(options_.publish_every * Uniform(0.5, 1.5),
        [this, trainer] { OnNode(trainer, [this, trainer] { Publish(trainer); }); });
  std::vector<NodePtr> ranks = GetRanks(trainer);
  if (trainer->publishing) return;
  for (const NodePtr& rank : ranks) {
    if (rank->epoch != trainer->epoch) return;
  }
  PolicyVersion version{trainer->epoch, trainer->step++};
  // The first version of a restored trainer has the bits of the checkpoint from which it started.
  uint64_t bits = random_();
  if (std::exchange(trainer->restored, false)) bits = checkpoint_bits_;
  trainer->bits[version.step] = bits;
  base_of_[version] = trainer->base;
  truth_[version] = CombineDigests(std::vector<uint64_t>(model_->buckets().size(), bits));
  if (Chance(0.05)) checkpoint_epoch_ = std::max(checkpoint_epoch_, version.epoch);
  trainer->publishing = !options_.publish_by_parts;
  // Ranks are out of phase: each stages at a time of its own, up to a publication's interval after rank 0.
  auto left = std::make_shared<size_t>(ranks.size());
  ControlPlane::Publication whole{trainer->id,           version, std::vector<uint64_t>(model_->buckets().size(), bits),
                                  model_->fingerprint(), 0.001,   now_};
  if (options_.adapters) whole.subset = {{{1, 2}}, trainer->base};
  for (const NodePtr& rank : ranks) {
    const double phase = ranks.size() == 1 ? 0 : Uniform(0, options_.publish_every);
    After(phase, [this, rank, trainer, left, whole] {
      OnNode(rank, [this, rank, trainer, left, whole] {
        Stage(rank, whole.version);
        if (options_.publish_by_parts) {
          rank->untold = whole;
          if (!std::exchange(rank->telling, true)) TellPart(rank, trainer);
        }
        // The rank reports on its stream to rank 0.
        After(rank == trainer ? 0 : Uniform(0, kMaxDelay), [this, trainer, left, whole] {
          OnNode(trainer, [this, trainer, left, whole] {
            if (--*left > 0) return;
            CheckPublished(whole.version);
            if (!options_.publish_by_parts) SendPublication(trainer, whole);
          });
        });
      });
    });
  }
}

// A call takes about as long as the ranks are out of phase, as to a distant synchronizer.
void Simulation::TellPart(const NodePtr& rank, const NodePtr& trainer) {
  const ControlPlane::Publication part = *std::exchange(rank->untold, std::nullopt);
  After(options_.publish_every * Uniform(0.5, 1.5), [this, rank, trainer, part] {
    OnNode(rank, [this, rank, trainer, part] {
      std::set<int32_t>& told = parts_[part.version];
      told.insert(rank->id.rank);
      if (static_cast<int>(told.size()) == options_.trainer_ranks) SendPublication(trainer, part);
      while (parts_.size() > kSlots) parts_.erase(parts_.begin());  // the ledger keeps few incomplete versions
      rank->telling = rank->untold.has_value();
      if (rank->telling) TellPart(rank, trainer);
    });
  });
}

// If nothing goes wrong except refusals, the synchronizer knows a version that all ranks have staged, or a newer one,
// within a second.
void Simulation::CheckPublished(PolicyVersion version) {
  const Faults& faults = options_.faults;
  const bool is_calm = !faults.breaks && !faults.trainer && !faults.synchronizer && !faults.disk;
  if (!is_calm || options_.disk_full_at.has_value()) return;
  After(1, [this, version] {
    const PublishedVersion* newest = plane_.has_value() ? plane_->ledger().newest() : nullptr;
    if (newest == nullptr || newest->version < version) {
      Violate(absl::StrCat("version ", version.ToString(), " starves: all ranks have staged it and nobody knows it"));
    }
  });
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
    auto heard = std::make_shared<bool>(false);
    RetryIfUnheard(life, heard, retry);
    auto reason = std::make_shared<std::string>();
    Incoming call;
    auto answer_takes = std::make_shared<double>(0);
    call.event = [this, trainer, publication, answer_lost, reason, answer_takes] {
      absl::StatusOr<int> published = plane_->OnPublish(publication, Time());
      *reason = ErrorReason(published.status());
      int64_t newest_epoch = epoch_owner_.empty() ? 0 : epoch_owner_.rbegin()->first;
      if (published.ok() && publication.version.epoch < newest_epoch) Violate("a fenced trainer published");
      if (!published.ok() && *reason != "FENCED" && *reason != "NOT_JOINED") {
        Violate("refused a good publication: " + published.status().ToString());
      }
      if (published.ok()) CheckLag(publication.version, now_);
      if (!answer_lost && *reason != "NOT_JOINED") *answer_takes = Uniform(0, kMaxDelay);
    };
    call.then = [this, trainer, answer_lost, reason, answer_takes, retry, heard] {
      *heard = true;
      if (answer_lost || *reason == "NOT_JOINED") return After(0.3, retry);
      After(*answer_takes, [this, trainer, reason] {
        OnNode(trainer, [this, trainer, reason] {
          trainer->publishing = false;
          if (*reason == "FENCED") Kill(trainer);
        });
      });
    };
    call.refused = [this, retry, heard] {
      *heard = true;
      After(0.3, retry);
    };
    OnSynchronizer(std::move(call));
  });
}

// A synchronizer that was stopped and then died has not answered.
void Simulation::RetryIfUnheard(uint64_t life, const std::shared_ptr<bool>& heard, const std::function<void()>& retry) {
  After(1, [this, life, heard, retry] {
    if (*heard) return;
    if (plane_.has_value() && plane_life_ == life) return RetryIfUnheard(life, heard, retry);
    retry();
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
    if (!fresh && owner->second != node->id.incarnation) Violate("an epoch was given to two starts of the trainer");
    if (node->id.rank == 0) Publish(node);
    return;
  }
  if (!node->welcomed) Violate("a command came before the welcome");
  if (const auto* prepare = std::get_if<Prepare>(&command)) return OnPrepare(node, session, *prepare);
  if (const auto* transfer = std::get_if<Transfer>(&command)) return OnTransfer(node, session, *transfer);
  if (const auto* install = std::get_if<Install>(&command)) return OnInstall(node, session, *install);
  if (const auto* finish = std::get_if<Finish>(&command)) {
    node->pins.erase(finish->attempt);
    if (node->attempt == finish->attempt) node->attempt = 0;
    if (node->rehearsal == finish->attempt) EndRehearsal(node);
  }
  if (std::holds_alternative<Evicted>(command)) Kill(node);
}

void Simulation::OnPrepare(const NodePtr& node, SessionId session, const Prepare& prepare) {
  if (prepare.rehearsal) return OnRehearsalPrepare(node, session, prepare);
  SyncReport report;
  report.attempt = prepare.attempt;
  report.stage = SyncStage::kPrepare;
  if (prepare.source) {
    bool staged = std::count(node->staged.begin(), node->staged.end(), prepare.version) > 0;
    if (staged) node->pins[prepare.attempt] = prepare.version;
    if (!staged) report.status = Error(absl::StatusCode::kNotFound, "VERSION_NOT_STAGED", "gone");
    report.rendezvous = "trainer";
    return Report(node, session, report);
  }
  if (node->attempt != 0) Violate("a receiver was given a second attempt");
  const bool again = prepare.check_weights && prepare.version == node->serving;
  if (prepare.version <= node->serving && !again) Violate("a receiver was offered an old version");
  node->attempt = prepare.attempt;
  node->stage = SyncStage::kPrepare;
  node->offered = prepare.version;
  node->offered_digest = prepare.digest;
  node->offered_base = prepare.subset.base_digest;
  node->shadow_verified = report.already_serves = node->serving_digest == prepare.digest;
  node->known_base = options_.mutant == Mutant::kForgetsSleep ? node->known_base : ClaimedBase(node);
  report.weights = node->sleep;
  if (options_.mutant == Mutant::kForgetsSleep) report.weights.slept = false;
  report.weights.base_present = node->offered_base != 0 && ClaimedBase(node) == node->offered_base;
  if (node->asleep || node->drowsy) {
    report.status = Error(absl::StatusCode::kUnavailable, "HELD", "it sleeps");
  } else if (prepare.check_weights && node->damaged) {
    report.status = Error(absl::StatusCode::kDataLoss, "WEIGHTS_DAMAGED", "it ends");
    ++damage_found_;
    After(Uniform(0.01, 0.1), [this, node] {
      if (!node->alive) return;
      Kill(node);
      const int index = node->id.replica_id.back() - '0';
      After(Uniform(0.1, 1), [this, node, index] {
        if (rollouters_[index] != node) return;
        rollouters_[index] = Start(RollouterId(index, absl::StrCat("r", next_incarnation_++)));
      });
    });
  }
  if (report.status.ok() && options_.faults.refusals && now_ < options_.fault_seconds && Chance(0.05)) {
    report.status = Error(absl::StatusCode::kUnavailable, "BUSY", "not now");
  }
  After(Uniform(0, 0.002), [this, node, session, report] {
    OnNode(node, [this, node, session, report] { Report(node, session, report); });
  });
}

void Simulation::OnTransfer(const NodePtr& node, SessionId session, const Transfer& transfer) {
  auto [told, first] = groups_.emplace(transfer.attempt, transfer.group);
  if (!first && told->second != transfer.group) Violate("members of one attempt were told different groups");
  if (node->rehearsal == transfer.attempt) return OnRehearsalTransfer(node, session, transfer);
  if (node->id.role == kTrainerRole) {
    if (node->pins.count(transfer.attempt) == 0) Violate("a source was told to send what it was not asked to prepare");
    SyncReport report;
    report.attempt = transfer.attempt;
    report.stage = SyncStage::kTransfer;
    return Report(node, session, report);
  }
  if (transfer.attempt != node->attempt) return Violate("a transfer of an attempt that was not prepared");
  bool complete = static_cast<int>(transfer.sources.size()) == options_.trainer_ranks;
  for (const SyncMember& source : transfer.sources) {
    complete = complete && source.rendezvous == "trainer";
    if (source.id.incarnation != transfer.sources[0].id.incarnation) Violate("ranks of two starts send together");
  }
  if (!complete) Violate("no rendezvous");
  const auto self = std::find_if(transfer.receivers.begin(), transfer.receivers.end(),
                                 [&node](const SyncMember& receiver) { return receiver.id == node->id; });
  if (self == transfer.receivers.end()) return Violate("a receiver is not among those it was told of");
  node->sent_base = self->base;
  if (options_.adapters) CheckBaseIsSentWhenItLacks(node, self->base);
  node->stage = SyncStage::kTransfer;
  node->receivers = transfer.receivers;
  node->told = now_;
  NodePtr source = trainer_;
  int64_t attempt = transfer.attempt;
  const bool sends_base = options_.adapters && self->base;
  if (sends_base) ++bases_sent_;
  After(FormingTime(transfer) + (sends_base ? Uniform(0.8, 1.5) : Uniform(0.01, 0.05)),
        [this, node, session, attempt, source] { FinishTransfer(node, session, attempt, source); });
}

void Simulation::CheckBaseIsSentWhenItLacks(const NodePtr& node, bool sent) {
  const bool holds = HoldsBase(node, node->offered_base);
  // What has changed in its memory it does not know.
  if (!sent && !holds && !node->damaged) Violate("a receiver lacks the base, and adapters alone are sent to it");
  if (sent && holds) Violate("a receiver holds the base, and is sent it again");
}

// True while a member on which the bytes of this attempt depend is stopped.
bool Simulation::IsHeldUp(const NodePtr& node, int64_t attempt, const NodePtr& source) const {
  for (const NodePtr& rank : GetRanks(source)) {
    if (rank->alive && rank->stopped_until > now_) return true;  // bytes arrive when this member is continued
  }
  if (!options_.group_transport) return false;
  if (!node->forming.empty() || node->aborts_until > now_) return true;  // this member does one thing after the other
  for (const SyncMember& receiver : node->receivers) {                   // members do not learn of the loss
    for (const auto& [index, other] : rollouters_) {
      bool there = other->id == receiver.id && other->alive && other->stopped_until <= now_;
      bool done = other->serving >= node->offered;
      if (other->id.replica_id == receiver.id.replica_id && !(there && (other->attempt == attempt || done)))
        return true;
    }
  }
  return false;
}

void Simulation::FinishTransfer(const NodePtr& node, SessionId session, int64_t attempt, const NodePtr& source) {
  if (node->session != session || node->attempt != attempt) return;
  if (IsHeldUp(node, attempt, source)) {
    const bool disturbed = disturbed_.contains(node->id.replica_id) || disturbed_.contains(source->id.replica_id) ||
                           options_.faults.synchronizer;
    if (!node->forming.empty() && !disturbed && now_ - node->told > std::max(1.0, kMaxForming) + 0.1) {
      Violate("a sync waits for a rehearsal longer than it takes to form a group");
    }
    return After(0.02, [this, node, session, attempt, source] { FinishTransfer(node, session, attempt, source); });
  }
  OnNode(node, [this, node, session, attempt, source] {
    if (node->session != session || node->attempt != attempt) return;
    const SyncReport report = MakeTransferReport(node, attempt, source);
    node->shadow_verified = report.status.ok();
    if (options_.group_transport && report.status.ok()) Keep(node, groups_.at(attempt));
    Report(node, session, report);
  });
}

SyncReport Simulation::MakeTransferReport(const NodePtr& node, int64_t attempt, const NodePtr& source) {
  SyncReport report;
  report.attempt = attempt;
  report.stage = SyncStage::kTransfer;
  report.bytes = model_->weight_bytes();
  report.connect_seconds = forming_[attempt];
  bool alive = true;
  bool staged = true;
  for (const NodePtr& rank : GetRanks(source)) {
    alive = alive && rank->alive;
    staged = staged && std::count(rank->staged.begin(), rank->staged.end(), node->offered) > 0;
  }
  if (!alive) {
    report.status = Error(absl::StatusCode::kUnavailable, "PEER_LOST", "reset");
  } else if (!staged) {
    report.status = Error(absl::StatusCode::kAborted, "SUPERSEDED", "the slot was needed");
  } else if (options_.faults.refusals && now_ < options_.fault_seconds && Chance(0.05)) {
    report.status = Error(absl::StatusCode::kDataLoss, "DIGEST_MISMATCH", "a bit flipped");
  } else if (!node->sent_base && node->damaged) {
    report.status = Error(absl::StatusCode::kDataLoss, "DIGEST_MISMATCH", "the base that it kept has changed");
    node->known_base = 0;  // it is sent again
  }
  return report;
}

// Rehearsals. Members form a group together, and each member does one thing after the other: the transfer of a sync
// waits for an open rehearsal, and for an abort.

std::vector<Simulation::NodePtr> Simulation::GetMembers(const Transfer& transfer) const {
  std::vector<NodePtr> members;
  auto take = [&members](const NodePtr& node, const std::vector<SyncMember>& of) {
    for (const SyncMember& member : of) {
      if (member.id == node->id && node->alive) members.push_back(node);
    }
  };
  for (const NodePtr& node : trainers_) take(node, transfer.sources);
  for (const auto& [index, node] : rollouters_) take(node, transfer.receivers);
  return members;
}

double Simulation::FormingTime(const Transfer& transfer) {
  if (!options_.group_transport) return 0;
  auto [known, first] = forming_.emplace(transfer.attempt, 0.0);
  if (!first) return known->second;
  bool all_keep = true;
  bool under_way = false;
  for (const NodePtr& node : GetMembers(transfer)) {
    const bool keeps = std::count(node->kept.begin(), node->kept.end(), transfer.group) > 0;
    const bool forms = node->forming == transfer.group;
    all_keep = all_keep && (keeps || forms);
    under_way = under_way || forms;
  }
  if (all_keep && under_way) ++taken_over_;
  if (all_keep) return 0;
  ++formed_in_syncs_;
  return known->second = Uniform(0.3, 1) * kMaxForming;
}

void Simulation::Keep(const NodePtr& node, const std::string& group) {
  std::erase(node->kept, group);
  node->kept.push_back(group);
  if (node->kept.size() > kKeptGroups) node->kept.pop_front();
}

void Simulation::OnRehearsalPrepare(const NodePtr& node, SessionId session, const Prepare& prepare) {
  if (!options_.group_transport) Violate("a rehearsal of a transport that forms no groups");
  if (!prepare.version.IsNone()) Violate("a rehearsal of a version");
  if (!prepare.source && node->attempt != 0) Violate("a rehearsal while a sync was under way");
  if (node->rehearsal != 0) Violate("two rehearsals at once");
  node->rehearsal = prepare.attempt;
  SyncReport report;
  report.attempt = prepare.attempt;
  report.stage = SyncStage::kPrepare;
  report.rendezvous = prepare.source ? "trainer" : "";
  if (options_.faults.refusals && now_ < options_.fault_seconds && Chance(0.05)) {
    report.status = Error(absl::StatusCode::kInternal, "NCCL_ERROR", "not now");
  }
  Report(node, session, report);
}

void Simulation::OnRehearsalTransfer(const NodePtr& node, SessionId session, const Transfer& transfer) {
  if (!transfer.bucket_digests.empty()) Violate("a rehearsal with digests");
  node->forming = transfer.group;
  auto [known, first] = forming_.emplace(transfer.attempt, Uniform(0.3, 1) * kMaxForming);
  FinishConnect(node, session, transfer, now_ + known->second);
}

void Simulation::FinishConnect(const NodePtr& node, SessionId session, const Transfer& transfer, double ready) {
  if (node->rehearsal != transfer.attempt) return;
  const std::vector<NodePtr> members = GetMembers(transfer);
  bool met = now_ >= ready && members.size() == transfer.sources.size() + transfer.receivers.size();
  for (const NodePtr& member : members) {
    const bool in_it =
        member->forming == transfer.group || std::count(member->kept.begin(), member->kept.end(), transfer.group) > 0;
    met = met && in_it && member->stopped_until <= now_;
  }
  if (!met) {  // no member is told the reason
    return After(0.02, [this, node, session, transfer, ready] {
      OnNode(node, [this, node, session, transfer, ready] { FinishConnect(node, session, transfer, ready); });
    });
  }
  OnNode(node, [this, node, session, transfer] {
    if (node->rehearsal != transfer.attempt) return;
    node->forming.clear();
    Keep(node, transfer.group);
    SyncReport report;
    report.attempt = transfer.attempt;
    report.stage = SyncStage::kTransfer;
    Report(node, session, report);
  });
}

void Simulation::EndRehearsal(const NodePtr& node) {
  node->rehearsal = 0;
  if (!std::exchange(node->forming, "").empty()) node->aborts_until = now_ + kAbort;
}

void Simulation::OnInstall(const NodePtr& node, SessionId session, const Install& install) {
  if (install.attempt != node->attempt || !node->shadow_verified) {
    return Violate("an install of something that was not verified");
  }
  After(Uniform(0, 0.003), [this, node, session, attempt = install.attempt] {
    OnNode(node, [this, node, session, attempt] {
      if (node->session != session || node->attempt != attempt) return;
      const bool unchanged = node->offered == node->serving && node->offered_digest == node->serving_digest;
      if (node->offered <= node->serving && !unchanged) Violate("the serving version went back");
      if (node->offered_digest != truth_.at(node->offered)) Violate("wrong bits under a version");
      if (node->serving_digest != node->offered_digest) {
        node->base = node->known_base = node->offered_base;
        node->damaged = false;
      }
      node->serving = node->offered;
      node->serving_digest = node->offered_digest;
      node->sleep.slept = node->sleep.slept && unchanged;
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
  Up(session, PostedEvents::Kind::kMessage, [this, session, report] { plane_->OnReport(session, report, Time()); });
}

}  // namespace syncopate::synchronizer
