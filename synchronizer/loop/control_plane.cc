#include "synchronizer/loop/control_plane.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/digest.h"
#include "base/reasons.h"
#include "base/status.h"

// The state machines are elsewhere: Membership (which members are alive), TrainerGroup (which epoch is valid),
// VersionLedger (which versions exist) and SyncCoordinator (which replica is sent which version). This file passes
// events to them in an order in which none depends on state that another does not have yet. Their answers become
// actions for the loop: commands, records that must be durable, notes for the log.
namespace syncopate::synchronizer {
namespace {

std::string Describe(const MemberKey& key) {
  return absl::StrFormat("%s %s rank %d", key.role, key.replica_id, key.rank);
}

SyncPeer GetPeer(const Member& member) {
  const Hello& hello = member.hello;
  return {hello.member, hello.transports, hello.facts, hello.layout};
}

// The status with which a removed member's stream is closed. It may come back with the same incarnation only after
// DECLARED_DEAD.
absl::Status Farewell(const MemberChange& change) {
  if (change.reason == reason::kLeft) return absl::OkStatus();
  bool may_return = change.reason == reason::kDeclaredDead || change.reason == reason::kNewStream;
  auto code = may_return ? absl::StatusCode::kUnavailable : absl::StatusCode::kFailedPrecondition;
  return Error(code, change.reason, change.detail.empty() ? "this stream is no longer used" : change.detail);
}

}  // namespace

absl::Status ControlPlane::Options::Validate() const {
  SYNCOPATE_RETURN_IF_ERROR(membership.Validate());
  SYNCOPATE_RETURN_IF_ERROR(sync.Validate());
  if (!run_id.empty()) return absl::OkStatus();
  return Error(absl::StatusCode::kInvalidArgument, "BAD_OPTIONS", "a run needs an id");
}

absl::StatusOr<ControlPlane> ControlPlane::Restore(const Options& options, const std::vector<LedgerRecord>& records) {
  SYNCOPATE_RETURN_IF_ERROR(options.Validate());
  SYNCOPATE_ASSIGN_OR_RETURN(VersionLedger ledger, VersionLedger::Restore(records));
  return ControlPlane(options, std::move(ledger));
}

ControlPlane::ControlPlane(const Options& options, VersionLedger ledger)
    : options_(options),
      ledger_(std::move(ledger)),
      membership_(options.membership),
      trainer_(ledger_.epoch()),
      coordinator_(options.sync) {
  // A run's id is chosen once and written down before any member learns it.
  if (ledger_.run_id().empty()) actions_.emplace_back(Persist{ledger_.SetRunId(options.run_id)});
  // No member has joined, so this starts no attempt.
  if (ledger_.newest() != nullptr) Emit(coordinator_.Publish(*ledger_.newest(), 0.0, absl::InfinitePast()));
  last_directory_ = CurrentDirectory();
}

void ControlPlane::OnHello(SessionId session, Hello hello, absl::Time now) {
  std::string who = Describe(GetKey(hello.member));
  absl::Status admitted = Admit(session, std::move(hello), now);
  if (admitted.ok()) return;
  actions_.emplace_back(Note{false, absl::StrFormat("refused %s: %s", who, admitted.message())});
  actions_.emplace_back(CloseSession{session, admitted});
}

absl::Status ControlPlane::Admit(SessionId session, Hello hello, absl::Time now) {
  // All checks come before all changes: a refused hello leaves no trace (invariant I16).
  SYNCOPATE_RETURN_IF_ERROR(membership_.CheckMayJoin(hello.member));
  SYNCOPATE_RETURN_IF_ERROR(ledger_.CheckRun(hello.run_id));
  // The version that the member claims to serve is not used before it is compared with the ledger; the stored hello
  // does not contain it.
  const PolicyVersion claimed = std::exchange(hello.serving, {});
  const uint64_t digest = std::exchange(hello.serving_digest, 0);
  const absl::Status claim = ledger_.CheckServed(claimed, digest);
  if (hello.member.role == kTrainerRole) {
    SYNCOPATE_RETURN_IF_ERROR(AdmitTrainer(hello, now));
  } else if (absl::IsFailedPrecondition(claim)) {
    // Other bits under a published version. An unpublished version is different: it may be newer than a restarted
    // synchronizer remembers, so that member is admitted, but its claim is not used.
    return claim;
  } else if (model_ != nullptr && hello.manifest != nullptr) {
    SYNCOPATE_RETURN_IF_ERROR(CheckSameModel(*model_, *hello.manifest));
    hello.manifest = model_;  // equal; all members share one object
  }
  MemberKey key = GetKey(hello.member);
  const Member* before = membership_.Find(key);
  if (before != nullptr && before->session != 0) {
    // Commands sent on the older stream may be lost, so it counts as broken, even if that has not been noticed yet.
    SessionId older = before->session;
    OnStreamBroken(older, now);
    actions_.emplace_back(CloseSession{older, Error(absl::StatusCode::kUnavailable, reason::kNewStream,
                                                    "the member has joined again on another stream")});
  }
  std::vector<MemberChange> changes = membership_.Join(session, std::move(hello), now);
  if (key.role == kRollouterRole) Believe(session, claimed, digest, claim);
  // Welcome is the first command on the new stream, before any command that the change of membership causes.
  Send(membership_.Find(session)->hello.member,
       Welcome{ledger_.run_id(), trainer_.epoch(), options_.membership.heartbeat, options_.membership.dead_after,
               CurrentDirectory()});
  Apply(changes, now);
  return absl::OkStatus();
}

absl::Status ControlPlane::AdmitTrainer(const Hello& hello, absl::Time now) {
  if (hello.manifest == nullptr) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_MEMBER", "a trainer must name the model that it trains");
  }
  if (hello.start.empty() && hello.member.world > 1) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_MEMBER",
                 "a trainer rank that has others beside it must name the start that all of them are of");
  }
  const std::string& start = hello.start.empty() ? hello.member.incarnation : hello.start;
  SYNCOPATE_ASSIGN_OR_RETURN(TrainerGroup::Admission admission,
                             trainer_.Admit(hello.member, start, hello.held_epoch, hello.checkpoint_epoch));
  // Another rank of the trainer of this epoch must fit the ranks that have joined. A raised epoch is a new trainer,
  // which may bring another model.
  if (!admission.raised && model_ != nullptr) {
    absl::Status fits = CheckFitsGroup(hello);
    // TrainerGroup has counted the rank already; removing it undoes everything.
    if (!fits.ok()) trainer_.Remove(hello.member);
    SYNCOPATE_RETURN_IF_ERROR(fits);
  }
  if (admission.raised) {
    // Durable before the welcome goes out, because the loop performs actions in order: an epoch that was given out and
    // forgotten would be given out twice.
    actions_.emplace_back(Persist{ledger_.RaiseEpoch(admission.epoch)});
    actions_.emplace_back(Note{false, absl::StrFormat("epoch %d begins", admission.epoch)});
  }
  // The older trainer's ranks may still believe that they are the trainer: each gets Evicted, and its stream is closed.
  for (const MemberId& fenced : admission.fenced) {
    auto changes = membership_.Evict(GetKey(fenced), reason::kFenced,
                                     absl::StrFormat("a newer trainer holds epoch %d", admission.epoch), now);
    if (changes.ok()) Apply(*changes, now);
  }
  AdoptModel(hello.manifest, now);
  return absl::OkStatus();
}

absl::Status ControlPlane::CheckFitsGroup(const Hello& hello) const {
  SYNCOPATE_RETURN_IF_ERROR(CheckSameModel(*model_, *hello.manifest));
  const int32_t world = hello.member.world;
  for (const auto& [key, member] : membership_.members()) {
    if (key.role != kTrainerRole || !trainer_.Contains(member.hello.member)) continue;
    const Hello& other = member.hello;
    SYNCOPATE_RETURN_IF_ERROR(
        CheckSameLayout(SourceLayoutName(hello.layout, world), SourceLayoutName(other.layout, world), "this rank"));
    SYNCOPATE_RETURN_IF_ERROR(CheckSameLayout(DestinationLayoutName(hello.destination_layout, 0),
                                              DestinationLayoutName(other.destination_layout, 0),
                                              "the receivers that this rank stages for"));
  }
  return absl::OkStatus();
}

void ControlPlane::AdoptModel(const std::shared_ptr<const Manifest>& model, absl::Time now) {
  if (model_ != nullptr && model_->fingerprint() == model->fingerprint()) return;
  model_ = model;
  plans_.emplace(model);
  std::vector<std::pair<MemberKey, absl::Status>> misfits;
  for (const auto& [key, member] : membership_.members()) {
    bool present = member.state == MemberState::kAlive || member.state == MemberState::kSuspect;
    if (member.hello.manifest == nullptr) continue;
    absl::Status same = CheckSameModel(*model, *member.hello.manifest);
    // Misfits are collected first, because evicting changes the map of this loop.
    if (present && key.role == kRollouterRole && !same.ok()) misfits.emplace_back(key, same);
  }
  for (const auto& [key, status] : misfits) Expel(key, status, now);
}

void ControlPlane::OnHeartbeat(SessionId session, PolicyVersion serving, uint64_t serving_digest, absl::Time now,
                               const std::string& held, uint64_t base_digest) {
  Apply(membership_.Heard(session, now), now);
  const Member* member = membership_.Find(session);
  if (member == nullptr || member->hello.member.role != kRollouterRole) return;
  // A thousand members send this each second, so it must cost only a comparison.
  const bool same = serving == member->hello.serving && serving_digest == member->hello.serving_digest;
  const bool same_held = held == member->hello.held;
  const bool same_base = base_digest == member->hello.base_digest;
  if (same && same_held && same_base && member->unbacked.IsNone()) return;  // true of nearly every heartbeat
  const MemberKey key = GetKey(member->hello.member);
  const absl::Status claim = ledger_.CheckServed(serving, serving_digest);
  if (absl::IsFailedPrecondition(claim)) return Expel(key, claim, now);
  // A report can overtake a heartbeat, so an older version than the known one is ignored; none at all is news.
  const PolicyVersion known = member->hello.serving;
  const bool gone = serving.IsNone() && !known.IsNone();
  const bool news = claim.ok() ? known < serving || gone || !member->unbacked.IsNone()
                               : known < serving && serving != member->unbacked;
  if (news) Believe(session, serving, serving_digest, claim);
  if (!same_held) SetHeld(session, held);
  // The base digest of an overtaken heartbeat is as old as its version, so it is ignored too.
  const bool new_base = !same_base && !(claim.ok() && serving < known && !gone);
  if (new_base) membership_.SetBase(session, base_digest);
  if (news || !same_held || new_base) Refresh(key, "", now);
}

void ControlPlane::SetHeld(SessionId session, const std::string& why) {
  membership_.SetHeld(session, why);
  const std::string who = Describe(GetKey(membership_.Find(session)->hello.member));
  actions_.emplace_back(
      Note{false, who + (why.empty() ? " takes versions again" : absl::StrCat(" takes no version for now: ", why))});
}

// A version that the ledger knows is what the member serves. An unknown version stays a claim: nothing older is sent to
// that member, and the claim is checked again when versions are published.
void ControlPlane::Believe(SessionId session, PolicyVersion claimed, uint64_t digest, const absl::Status& claim) {
  if (claim.ok()) return membership_.SetServing(session, claimed, digest);
  membership_.SetUnbacked(session, claimed);
  actions_.emplace_back(
      Note{true, absl::StrFormat("%s is not believed: %s", Describe(GetKey(membership_.Find(session)->hello.member)),
                                 claim.message())});
}

// After a publication no rank can have made a later version of the same epoch: evicts members that claim one.
void ControlPlane::ExpelImpossible(PolicyVersion newest, absl::Time now) {
  std::vector<std::pair<MemberKey, absl::Status>> liars;
  for (const auto& [key, member] : membership_.members()) {
    const bool later = member.unbacked.epoch == newest.epoch && newest < member.unbacked;
    if (member.Reachable() && later) liars.emplace_back(key, ledger_.CheckServed(member.unbacked, 0));
  }
  for (const auto& [key, why] : liars) Expel(key, why, now);
}

void ControlPlane::Expel(const MemberKey& key, const absl::Status& why, absl::Time now) {
  auto changes = membership_.Evict(key, ErrorReason(why), std::string(why.message()), now);
  if (changes.ok()) Apply(*changes, now);
}

void ControlPlane::OnReport(SessionId session, const SyncReport& report, absl::Time now) {
  Apply(membership_.Heard(session, now), now);
  const Member* member = membership_.Find(session);
  if (member != nullptr) Emit(coordinator_.OnReport(member->hello.member, report, now));
}

void ControlPlane::OnLeave(SessionId session, const std::string& reason, absl::Time now) {
  Apply(membership_.Leave(session, reason, now), now);
}

void ControlPlane::OnStreamBroken(SessionId session, absl::Time now) {
  const Member* member = membership_.Find(session);
  if (member == nullptr) return;
  MemberKey key = GetKey(member->hello.member);
  membership_.Disconnected(session, now);
  Refresh(key, "DISCONNECTED", now);
}

absl::StatusOr<int> ControlPlane::OnPublish(const Publication& publication, absl::Time now) {
  // A publication of an older epoch is checked by the ledger only, which refuses it: so a fenced trainer learns that it
  // is fenced.
  bool current = publication.version.epoch >= ledger_.epoch();
  if (current) {
    const Member* member = membership_.Find(GetKey(publication.member));
    if (member == nullptr || !trainer_.Contains(publication.member)) {
      return Error(absl::StatusCode::kUnavailable, reason::kNotJoined,
                   "the publishing trainer has not joined this synchronizer; repeat once its Join stream is up");
    }
    if (publication.member.rank != 0) {
      return Error(absl::StatusCode::kInvalidArgument, "NOT_RANK_0",
                   absl::StrFormat("trainer rank %d publishes a version; rank 0 publishes for all ranks",
                                   publication.member.rank));
    }
    if (publication.manifest_fingerprint != model_->fingerprint()) {
      return Error(absl::StatusCode::kFailedPrecondition, reason::kModelMismatch,
                   "the published weights are not of the model that the trainer joined with");
    }
    SYNCOPATE_RETURN_IF_ERROR(CheckSubset(publication.subset, *model_));
    SYNCOPATE_ASSIGN_OR_RETURN(const int64_t digests, CountDigests(member->hello));
    if (static_cast<int64_t>(publication.bucket_digests.size()) != digests) {
      return Error(absl::StatusCode::kInvalidArgument, "BAD_DIGESTS",
                   absl::StrFormat("%d bucket digests for %d buckets", publication.bucket_digests.size(), digests));
    }
  }
  SYNCOPATE_ASSIGN_OR_RETURN(
      std::optional<LedgerRecord> record,
      ledger_.Publish({publication.version, publication.bucket_digests, CombineDigests(publication.bucket_digests),
                       publication.unix_seconds, publication.subset}));
  // No record: the same publication again. Receivers may prepare while the record is written: the bits belong to the
  // trainer and do not change if the record is lost. The publisher gets OK only after the record is durable.
  if (record.has_value()) {
    ExpelImpossible(publication.version, now);
    Emit(coordinator_.Publish(*ledger_.Find(publication.version), publication.stage_seconds, now));
    actions_.emplace_back(Persist{*std::move(record)});
  }
  BroadcastDirectory();
  return coordinator_.behind();
}

absl::StatusOr<int64_t> ControlPlane::CountDigests(const Hello& hello) {
  SYNCOPATE_ASSIGN_OR_RETURN(auto planned,
                             plans_->Get({hello.layout, hello.member.world, hello.destination_layout, /*world=*/0}));
  return planned->plan.digests();
}

absl::Status ControlPlane::OnComplete(const MemberId& member, const PolicyVersion& last) {
  if (last.epoch >= ledger_.epoch() && !trainer_.Contains(member)) {
    return Error(absl::StatusCode::kUnavailable, reason::kNotJoined,
                 "this trainer has not joined this synchronizer; repeat once its Join stream is up");
  }
  SYNCOPATE_ASSIGN_OR_RETURN(std::optional<LedgerRecord> record, ledger_.Complete(last));
  if (record.has_value()) {
    actions_.emplace_back(Persist{*std::move(record)});
    actions_.emplace_back(Note{false, absl::StrFormat("the run is complete at %s", last.ToString())});
  }
  BroadcastDirectory();
  return absl::OkStatus();
}

absl::StatusOr<int> ControlPlane::OnTrigger(absl::Time now) {
  if (ledger_.newest() == nullptr) {
    return Error(absl::StatusCode::kFailedPrecondition, "NO_VERSION", "no version has been published yet");
  }
  Emit(coordinator_.Trigger(now));
  return coordinator_.behind();
}

absl::Status ControlPlane::OnEvict(const std::string& replica_id, int32_t rank, const std::string& reason,
                                   absl::Time now) {
  MemberKey key{kRollouterRole, replica_id, rank};
  if (membership_.Find(key) == nullptr && membership_.Find(MemberKey{kTrainerRole, replica_id, rank}) != nullptr) {
    key.role = kTrainerRole;
  }
  SYNCOPATE_ASSIGN_OR_RETURN(std::vector<MemberChange> changes, membership_.Evict(key, reason::kEvicted, reason, now));
  Apply(changes, now);
  return absl::OkStatus();
}

void ControlPlane::OnBlocked(absl::Duration waited, absl::Time now) {
  membership_.BeginAnew(now);
  coordinator_.Postpone(waited);
}

void ControlPlane::Tick(absl::Time now) {
  Apply(membership_.Tick(now), now);
  Emit(coordinator_.Tick(now));
}

absl::Time ControlPlane::NextDeadline() const {
  return std::min(membership_.NextDeadline(), coordinator_.NextDeadline());
}

std::vector<Action> ControlPlane::TakeActions() { return std::exchange(actions_, {}); }

Directory ControlPlane::CurrentDirectory() const {
  Directory directory;
  directory.trainer_epoch = trainer_.epoch();
  directory.completed = ledger_.completed();
  if (ledger_.newest() != nullptr) directory.newest = ledger_.newest()->version;
  const auto& members = membership_.members();
  for (auto at = members.lower_bound({kTrainerRole, "", 0}); at != members.end(); ++at) {
    const auto& [key, member] = *at;
    bool leads = key.role == kTrainerRole && key.rank == 0 && trainer_.Contains(member.hello.member);
    bool present = member.state == MemberState::kAlive || member.state == MemberState::kSuspect;
    if (present && leads) directory.trainer_address = member.hello.address;
  }
  return directory;
}

void ControlPlane::Apply(const std::vector<MemberChange>& changes, absl::Time now) {
  using Kind = MemberChange::Kind;
  if (changes.empty()) return;  // true of nearly every heartbeat
  for (const MemberChange& change : changes) {
    switch (change.kind) {
      case Kind::kJoined:
      case Kind::kRejoined:
        actions_.emplace_back(
            Note{false, Describe(change.key) + (change.kind == Kind::kJoined ? " joined" : " is back")});
        Refresh(change.key, "", now);
        break;
      case Kind::kSuspected:
      case Kind::kRecovered:
        actions_.emplace_back(
            Note{false, Describe(change.key) + (change.kind == Kind::kSuspected ? " is silent" : " is heard again")});
        break;
      case Kind::kDead:
      case Kind::kLeft:
        actions_.emplace_back(
            Note{false, absl::StrFormat("%s is gone: %s %s", Describe(change.key), change.reason, change.detail)});
        Close(change);
        if (change.key.role == kTrainerRole) trainer_.Remove(membership_.Find(change.key)->hello.member);
        Refresh(change.key, change.reason, now);
        break;
      case Kind::kDeathsPostponed:
      case Kind::kDeathsResumed:
        actions_.emplace_back(Note{change.kind == Kind::kDeathsPostponed, change.detail});
        break;
    }
  }
  BroadcastDirectory();
}

// Evicted is sent before the stream ends. Otherwise the member would take the end for a network failure and come back.
void ControlPlane::Close(const MemberChange& change) {
  if (change.closed == 0) return;
  absl::Status farewell = Farewell(change);
  if (farewell.code() == absl::StatusCode::kFailedPrecondition) {
    actions_.emplace_back(SendCommand{change.closed, Evicted{change.reason}});
  }
  actions_.emplace_back(CloseSession{change.closed, farewell});
}

void ControlPlane::Refresh(const MemberKey& key, const std::string& reason, absl::Time now) {
  if (key.role == kTrainerRole) {
    RefreshSources(now);
  } else {
    RefreshReplica(key.replica_id, reason, now);
  }
}

void ControlPlane::RefreshReplica(const std::string& replica_id, const std::string& reason, absl::Time now) {
  ReceiverReplica replica;
  replica.replica_id = replica_id;
  int32_t world = 0;
  const auto& members = membership_.members();
  for (auto at = members.lower_bound({kRollouterRole, replica_id, 0}); at != members.end(); ++at) {
    const auto& [key, member] = *at;
    if (key.role != kRollouterRole || key.replica_id != replica_id) break;
    if (!member.Reachable() || member.hello.manifest == nullptr) continue;
    bool first = replica.ranks.empty();
    world = member.hello.member.world;
    const PolicyVersion serving = std::max(member.hello.serving, member.unbacked);  // nothing older is sent to it
    // A replica serves what all of its ranks serve: if one rank is behind, the whole replica is synced again.
    replica.serving = first ? serving : std::min(replica.serving, serving);
    if (replica.held.empty()) replica.held = member.hello.held;
    // A base that one rank lacks is sent to all ranks of the replica.
    replica.base_digest = first || replica.base_digest == member.hello.base_digest ? member.hello.base_digest : 0;
    replica.ranks.push_back(GetPeer(member));
  }
  // Ranks are sorted by number. If the count is right and the last rank has the highest number, none is missing.
  bool complete = !replica.ranks.empty() && static_cast<int32_t>(replica.ranks.size()) == world &&
                  replica.ranks.back().id.rank == world - 1;
  if (complete) {
    Emit(coordinator_.SetReceiver(std::move(replica), now));
  } else {
    Emit(coordinator_.RemoveReceiver(replica_id, reason.empty() ? "INCOMPLETE" : reason, "a rank is not reachable",
                                     now));
  }
}

void ControlPlane::RefreshSources(absl::Time now) {
  SourceGroup sources;
  sources.epoch = trainer_.epoch();
  sources.manifest = model_;
  std::vector<MemberId> ranks = trainer_.CompleteRanks();
  for (const MemberId& id : ranks) {
    const Member* member = membership_.Find(GetKey(id));
    if (member == nullptr || !member->Reachable()) continue;
    sources.ranks.push_back(GetPeer(*member));
    sources.destination_layout = member->hello.destination_layout;
  }
  // A plan needs every rank's part. If one rank is missing, nothing can be sent until it is back or a new trainer
  // starts.
  if (sources.ranks.size() != ranks.size()) sources.ranks.clear();
  Emit(coordinator_.SetSources(std::move(sources), now));
}

void ControlPlane::BroadcastDirectory() {
  Directory directory = CurrentDirectory();
  // Called after every possible change, so that callers need not know which changes matter.
  if (directory == last_directory_) return;
  last_directory_ = directory;
  for (const auto& [key, member] : membership_.members()) {
    if (member.Reachable()) actions_.emplace_back(SendCommand{member.session, directory});
  }
}

void ControlPlane::Emit(AttemptOutput output) {
  for (auto& [to, command] : output.sends) Send(to, std::move(command));
  for (SyncRecord& record : output.ended) {
    if (record.ok()) {
      // The installed version counts as served now; the member's next heartbeat will report it too.
      const auto& members = membership_.members();
      const PublishedVersion* version = ledger_.Find(record.version);
      for (auto at = members.lower_bound({kRollouterRole, record.replica_id, 0}); at != members.end(); ++at) {
        if (at->first.role != kRollouterRole || at->first.replica_id != record.replica_id) break;
        membership_.SetServing(at->second.session, record.version, version == nullptr ? 0 : version->digest);
        if (version != nullptr) membership_.SetBase(at->second.session, version->subset.base_digest);
      }
    }
    actions_.emplace_back(SyncEnded{std::move(record)});
  }
}

// Finds the session by member id: another process, which does not know the attempt, may have taken the place since the
// attempt was decided.
void ControlPlane::Send(const MemberId& to, Command command) {
  const Member* member = membership_.Find(GetKey(to));
  if (member == nullptr || member->session == 0 || member->hello.member != to) return;
  actions_.emplace_back(SendCommand{member->session, std::move(command)});
}

}  // namespace syncopate::synchronizer
