#include "synchronizer/transport/weight_receiver.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <iterator>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/digest.h"
#include "base/log.h"
#include "base/reasons.h"
#include "base/status.h"
#include "synchronizer/transport/split_copies.h"

// Phases of an attempt. Phases in brackets block: Finish ends the other phases at once, and these when they return.
//
//   kIdle --Prepare--> [kPreparing] --ok--> kPrepared --Transfer--> [kTransferring] --verified--> kVerified
//     ^                     |                   ^                          |                          |
//     |                     | serves the bits --|--------------------------|------------------------> |
//     |<------ refused -----|                   |<------- failed ----------|                          |
//     |                                         |<--- installed, or failed --- [kInstalling] <--Install
//     |<-- ClearUp -- kEnding <-- Finish -- kPrepared, kVerified, or a blocking phase that has returned
//
// For a target in place (without a shadow), `in_place_` has these states too:
//
//   kNo --the sources have the version, generation stops--> kStopped --the first byte is written--> kOverwritten
//   kStopped, the attempt fails: generation goes on.   kOverwritten, it fails: nothing serves.   installed: kNo
namespace syncopate::synchronizer {
namespace {

absl::Status Refuse(absl::string_view reason, const std::string& message) {
  return Error(absl::StatusCode::kFailedPrecondition, reason, message);
}

ShadowContents GetContents(const Manifest& manifest, const Layout& layout, const std::vector<WireBucket>& buckets,
                           int32_t rank) {
  ShadowContents contents;
  for (const WireBucket& bucket : buckets) {
    contents.buckets.push_back({bucket.destination_offset, bucket.destination_offset + bucket.bytes});
  }
  for (const Piece& piece : layout.pieces()) {  // by (rank, offset)
    if (piece.rank != rank) continue;
    const TensorSpec& spec = manifest.tensors()[piece.tensor];
    const int64_t bytes = piece.elements() * DTypeBytes(spec.dtype);
    contents.numbers.push_back({{piece.offset, piece.offset + bytes}, spec.dtype, spec.name});
  }
  return contents;
}

// True if a sleep has freed the weights since the latest sync.
bool HasLostWeights(ReceiverWeights weights) {
  weights.base_present = true;
  return NeedsBase(weights);
}

// Bytes of what is verified without a transport between two notes that the receiver moves.
constexpr int64_t kCheckedAtOnce = 64 << 20;

// How often a receiver that waits for generation to stop checks that the sources still have the version.
constexpr absl::Duration kPausePatience = absl::Milliseconds(50);

// A ShadowCheck that measures its own time.
class TimedCheck {
 public:
  TimedCheck(std::unique_ptr<ShadowCheck> check, const Clock* clock) : check_(std::move(check)), clock_(clock) {}

  void Arrived(ByteRange range, void* stream) {
    absl::Time begun = clock_->Now();
    check_->Arrived(range, stream);
    nanoseconds_ += absl::ToInt64Nanoseconds(clock_->Now() - begun);
  }
  absl::StatusOr<std::vector<uint64_t>> Finish(absl::Duration deadline) { return check_->Finish(deadline); }
  absl::Duration busy() const { return absl::Nanoseconds(nanoseconds_.load()); }

 private:
  const std::unique_ptr<ShadowCheck> check_;
  const Clock* const clock_;
  std::atomic<int64_t> nanoseconds_ = 0;
};

}  // namespace

WeightReceiver::WeightReceiver(Options options, WeightTarget* target, std::vector<ReceiverTransport*> transports)
    : options_(std::move(options)),
      target_(target),
      transports_(std::move(transports)),
      plans_(std::make_shared<const Manifest>(options_.manifest)) {}

absl::StatusOr<WeightReceiver::Prepared> WeightReceiver::Prepare(const synchronizer::Prepare& command) {
  SYNCOPATE_ASSIGN_OR_RETURN(auto planned, CheckPlan(command));
  SYNCOPATE_ASSIGN_OR_RETURN(ReceiverTransport * transport, FindTransport(command.transport));
  SYNCOPATE_RETURN_IF_ERROR(Begin(command.attempt));
  offer_.planned = std::move(planned);
  // Computed once for each plan, because it walks over every tensor; all syncs of a run share one plan.
  Expect(offer_.planned);
  absl::StatusOr<Prepared> prepared = PrepareTarget(command, transport);
  if (!prepared.ok()) ReleaseTarget();
  Leave(!prepared.ok() ? Phase::kIdle : prepared->already_serves ? Phase::kVerified : Phase::kPrepared);
  return prepared;
}

absl::StatusOr<WeightReceiver::Prepared> WeightReceiver::PrepareTarget(const synchronizer::Prepare& command,
                                                                       ReceiverTransport* transport) {
  SYNCOPATE_RETURN_IF_ERROR(ClaimTarget());
  // Read after the target is claimed: a sleep that comes later is delayed until the attempt ends.
  const ReceiverWeights weights = WeightsFor(command);
  ForgetLostWeights(weights);
  SYNCOPATE_RETURN_IF_ERROR(CheckNewer(command));
  // A base that was on the host while the target slept serves all later versions, so it is digested once it is back.
  const bool woken = target_->shares_base() && weights.slept && !checked_since_sleep_;
  if (command.check_weights || woken) SYNCOPATE_RETURN_IF_ERROR(CheckLive(command.deadline));
  checked_since_sleep_ = checked_since_sleep_ || woken;
  offer_.prepare = command;
  offer_.deadline = options_.clock->Now() + command.deadline;
  already_serves_ = !serving().IsNone() && weights.digest == command.digest;
  transport_ = transport;
  // The live bits already are those of the version: nothing is opened, and Install only relabels.
  if (already_serves_) return Prepared{true, "", weights};
  // Before Open(), by which other processes may map the shadow's memory.
  SYNCOPATE_RETURN_IF_ERROR(TakeShadow(command.deadline));
  SYNCOPATE_ASSIGN_OR_RETURN(std::string rendezvous, transport_->Open(command));
  MutexLock lock(&mutex_);
  opened_ = transport_;
  return Prepared{false, std::move(rendezvous), weights};
}

absl::Status WeightReceiver::ClaimTarget() {
  SYNCOPATE_RETURN_IF_ERROR(target_->BeginAttempt());
  MutexLock lock(&mutex_);
  claimed_ = true;
  return absl::OkStatus();
}

absl::Status WeightReceiver::TakeShadow(absl::Duration deadline) {
  SYNCOPATE_ASSIGN_OR_RETURN(const bool is_new, target_->TakeShadow(deadline));
  if (!is_new) return absl::OkStatus();
  shadow_base_ = 0;
  shadow_verified_ = {};
  return absl::OkStatus();
}

void WeightReceiver::ReleaseTarget() {
  {
    MutexLock lock(&mutex_);
    if (!std::exchange(claimed_, false)) return;
  }
  target_->EndAttempt();
}

void WeightReceiver::ForgetLostWeights(const ReceiverWeights& weights) {
  if (weights.slept) shadow_base_ = 0;  // a sleep keeps at most one weight set
  if (!HasLostWeights(weights)) return;
  live_base_ = 0;
  MutexLock lock(&mutex_);
  serving_ = PolicyVersion();
  serving_digest_ = 0;
}

absl::Status WeightReceiver::CheckNewer(const synchronizer::Prepare& command) const {
  const PolicyVersion& version = command.version;
  MutexLock lock(&mutex_);
  SYNCOPATE_RETURN_IF_ERROR(damaged_);
  // Versions never go back; otherwise rollouters would stamp tokens with a version that the trainer has forgotten. If
  // the weights were torn in place or dropped, nothing serves, so the same version may come again. It also comes again
  // to be checked.
  const bool lost = serving_.IsNone() && !served_.IsNone();
  const bool again = version == serving_ && command.check_weights && command.digest == serving_digest_;
  if (lost || again ? version >= served_ : version > served_) return absl::OkStatus();
  return Refuse("OLD_VERSION",
                absl::StrFormat("version %s is not above %s, which serves", version.ToString(), served_.ToString()));
}

absl::StatusOr<std::shared_ptr<const PlannedLayouts>> WeightReceiver::CheckPlan(const synchronizer::Prepare& command) {
  if (command.manifest_fingerprint != options_.manifest.fingerprint()) {
    return Refuse(reason::kModelMismatch, "the attempt is of another model than this receiver was made for");
  }
  const int32_t world = options_.member.world;
  SYNCOPATE_RETURN_IF_ERROR(CheckSameLayout(DestinationLayoutName(options_.layout, world),
                                            DestinationLayoutName(command.destination_layout, world), "this receiver"));
  SYNCOPATE_ASSIGN_OR_RETURN(auto planned,
                             plans_.Get({command.source_layout, command.sources, command.destination_layout, world}));
  // Both sides compute the plan from names of layouts. Equal hashes show that the plans are equal; without this check a
  // difference of builds would put weights in wrong places.
  if (planned->plan.hash() != command.plan_hash) {
    return Refuse(reason::kPlanMismatch,
                  absl::StrFormat("the plan for %d sources is %016x here and %016x there; run the "
                                  "same build on all members",
                                  command.sources, planned->plan.hash(), command.plan_hash));
  }
  return planned;
}

void WeightReceiver::Expect(const std::shared_ptr<const PlannedLayouts>& planned) {
  if (expected_ != nullptr && expected_->planned == planned) return;
  const int32_t rank = options_.member.rank;
  auto expected = std::make_shared<Expected>();
  expected->planned = planned;
  expected->buckets = planned->plan.BucketsTo(rank);
  expected->contents = GetContents(options_.manifest, planned->destination, expected->buckets, rank);
  const ShadowContents& all = expected->contents;
  int64_t& adapters_begin = expected->adapters_begin;
  for (const Piece& piece : planned->destination.pieces()) {
    if (piece.rank != rank || !options_.manifest.tensors()[piece.tensor].adapter) continue;
    adapters_begin = std::min(adapters_begin, piece.offset);
  }
  const auto is_base = [&adapters_begin](const ByteRange& range) { return range.begin < adapters_begin; };
  expected->first_adapter = static_cast<size_t>(std::count_if(all.buckets.begin(), all.buckets.end(), is_base));
  std::copy_if(all.buckets.begin(), all.buckets.end(), std::back_inserter(expected->adapters.buckets),
               std::not_fn(is_base));
  std::copy_if(all.numbers.begin(), all.numbers.end(), std::back_inserter(expected->adapters.numbers),
               [&is_base](const TypedRange& numbers) { return !is_base(numbers.range); });
  expected_ = std::move(expected);
}

absl::Status WeightReceiver::CheckLive(absl::Duration deadline) {
  const bool copies = !target_->in_place();
  if (live_verified_.expected == nullptr || serving().IsNone() || (copies && !target_->can_copy_live())) {
    return absl::OkStatus();
  }
  const ShadowContents& contents = live_verified_.expected->contents;
  shadow_base_ = 0;  // until the copy is known to be good
  if (copies) {
    SYNCOPATE_RETURN_IF_ERROR(TakeShadow(deadline));
    SYNCOPATE_RETURN_IF_ERROR(target_->CopyLive(contents.buckets));
  }
  SYNCOPATE_ASSIGN_OR_RETURN(const std::unique_ptr<ShadowCheck> check, target_->BeginCheck(contents));
  for (const ByteRange& range : contents.buckets) check->Arrived(range, nullptr);
  const absl::StatusOr<std::vector<uint64_t>> digests = check->Finish(deadline);
  if (absl::IsDeadlineExceeded(digests.status())) return digests.status();
  if (digests.ok() && *digests == live_verified_.digests) {
    if (copies) shadow_base_ = live_base_.load();
    return absl::OkStatus();
  }
  const absl::Status damaged =
      Error(absl::StatusCode::kDataLoss, reason::kWeightsDamaged,
            absl::StrFormat("the weights of %s have changed in memory since they arrived; this process ends, and the "
                            "next one is sent all of them",
                            serving().ToString()));
  live_base_ = 0;
  {
    MutexLock lock(&mutex_);
    serving_ = PolicyVersion();
    serving_digest_ = 0;
    damaged_ = damaged;
  }
  if (options_.on_damaged) options_.on_damaged(damaged);
  return damaged;
}

absl::StatusOr<ReceiverTransport*> WeightReceiver::FindTransport(const std::string& name) const {
  for (ReceiverTransport* transport : transports_) {
    if (transport->name() == name) return transport;
  }
  return Refuse(reason::kTransportUnknown, absl::StrFormat("this receiver cannot receive by %s", name));
}

absl::Status WeightReceiver::Begin(int64_t attempt) {
  MutexLock lock(&mutex_);
  if (phase_ != Phase::kIdle) {
    return Error(absl::StatusCode::kUnavailable, "BUSY", absl::StrFormat("attempt %d has not been finished", attempt_));
  }
  attempt_ = attempt;
  finished_ = false;
  stop_ = std::stop_source();
  phase_ = Phase::kPreparing;
  return absl::OkStatus();
}

ReceiverWeights WeightReceiver::WeightsFor(const synchronizer::Prepare& command) const {
  ReceiverWeights weights = target_->LastSleep();
  const uint64_t base = command.subset.base_digest;
  // Base weights that are not sent must end up beside the adapters: they are in the shadow already, can be copied from
  // the live weights, or the target has one weight set.
  const bool in_shadow = target_->in_place() || target_->can_copy_live() || shadow_base_ == base;
  weights.base_present = base != 0 && live_base_ == base && in_shadow;
  weights.digest = serving_digest();
  return weights;
}

absl::StatusOr<std::string> WeightReceiver::PrepareRehearsal(const synchronizer::Prepare& command) {
  SYNCOPATE_ASSIGN_OR_RETURN(auto planned, CheckPlan(command));
  SYNCOPATE_ASSIGN_OR_RETURN(ReceiverTransport * transport, FindTransport(command.transport));
  rehearsed_ = {command, options_.clock->Now() + command.deadline, std::move(planned)};
  return rehearsal_.Prepare(command, transport);
}

void WeightReceiver::Connect(const synchronizer::Transfer& command, std::function<void(absl::StatusOr<double>)> done) {
  absl::StatusOr<const SyncMember*> self = FindSelf(command);
  if (!self.ok()) return done(self.status());
  if (rehearsed_.prepare.attempt != command.attempt) {
    return done(
        Refuse(reason::kNotPrepared, absl::StrFormat("attempt %d is not ready for this command", command.attempt)));
  }
  ReceiveRequest request =
      RequestFor(rehearsed_, command, **self, rehearsed_.planned->plan.CopiesTo(options_.member.rank));
  rehearsal_.Connect(request, [done = std::move(done), clock = options_.clock,
                               begun = options_.clock->Now()](const absl::Status& status) {
    if (!status.ok()) return done(status);
    done(absl::ToDoubleSeconds(clock->Now() - begun));
  });
}

absl::StatusOr<WeightReceiver::Received> WeightReceiver::Transfer(const synchronizer::Transfer& command) {
  SYNCOPATE_RETURN_IF_ERROR(Enter(command.attempt, Phase::kPrepared, Phase::kTransferring));
  absl::StatusOr<Received> received = ReceiveAndVerify(command);
  if (!received.ok()) AbandonInPlace();
  // After a failed transfer the attempt stays prepared: the synchronizer's Finish ends it and closes what was opened.
  Leave(received.ok() ? Phase::kVerified : Phase::kPrepared);
  return received;
}

absl::StatusOr<const SyncMember*> WeightReceiver::FindSelf(const synchronizer::Transfer& command) const {
  for (const SyncMember& receiver : command.receivers) {
    if (receiver.id == options_.member) return &receiver;
  }
  return Refuse(reason::kNotAReceiver, "the transfer does not name this member among its receivers");
}

ReceiveRequest WeightReceiver::RequestFor(const Offer& offer, const synchronizer::Transfer& command,
                                          const SyncMember& self, std::vector<Copy> copies) const {
  ReceiveRequest request;
  request.attempt = offer.prepare.attempt;
  request.version = offer.prepare.version;
  request.manifest_fingerprint = offer.prepare.manifest_fingerprint;
  request.sources = command.sources;
  request.receivers = command.receivers;
  request.self = static_cast<int32_t>(&self - command.receivers.data());
  std::set<std::string> replicas;
  for (const SyncMember& receiver : command.receivers) replicas.insert(receiver.id.replica_id);
  request.replicas = static_cast<int32_t>(replicas.size());
  request.world = options_.member.world;
  request.group = command.group;
  request.copies = std::move(copies);
  request.deadline = offer.deadline;
  return request;
}

absl::StatusOr<WeightReceiver::Received> WeightReceiver::ReceiveAndVerify(const synchronizer::Transfer& command) {
  // The announced digests are checked against the version's digest before any byte moves: they verify what arrives.
  bool announced = static_cast<int64_t>(command.bucket_digests.size()) == offer_.planned->plan.digests() &&
                   CombineDigests(command.bucket_digests) == offer_.prepare.digest;
  if (!announced) {
    return Error(absl::StatusCode::kDataLoss, reason::kDigestMismatch,
                 "the bucket digests are not those of the version");
  }
  SYNCOPATE_ASSIGN_OR_RETURN(const SyncMember* self, FindSelf(command));
  const int32_t rank = options_.member.rank;
  SYNCOPATE_RETURN_IF_ERROR(CheckSubset(offer_.prepare.subset));
  const bool adapters_alone = TakesAdaptersAlone(self->base);
  std::optional<LentMemory> lent = BorrowBase(command, *self);
  const bool maps_base = lent.has_value();
  SplitCopies split = Split(options_.manifest, offer_.planned->destination, rank, offer_.planned->plan.CopiesTo(rank),
                            offer_.prepare.subset.adapters, self->base && !maps_base);
  ReceiveRequest request = RequestFor(offer_, command, *self, std::move(split.sent));
  // The check is made before generation stops for a target in place, so that making it does not lengthen the pause.
  SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<ShadowCheck> unmeasured,
                             target_->BeginCheck(adapters_alone ? expected_->adapters : expected_->contents));
  SYNCOPATE_RETURN_IF_ERROR(PauseIfInPlace(request, self->base));
  if (self->base) SYNCOPATE_RETURN_IF_ERROR(PlaceBase(std::move(lent)));
  SYNCOPATE_RETURN_IF_ERROR(KeepBase(split.kept));
  TimedCheck check(std::move(unmeasured), options_.clock);
  // Base weights that are not sent are verified too if they were copied; otherwise a damaged copy would serve for ever. A
  // base that is shared was verified when it arrived, and is when the weights are to be checked (CheckLive).
  // Gaps between adapters, which are zeros, count with the adapters. A base that is mapped is verified each time as if it
  // had arrived.
  for (const ByteRange& range : split.kept) {
    if (adapters_alone && range.begin < expected_->adapters_begin) continue;
    for (int64_t begin = range.begin; begin < range.end; begin += kCheckedAtOnce) {
      const ByteRange part{begin, std::min(begin + kCheckedAtOnce, range.end)};
      check.Arrived(part, nullptr);
      if (!maps_base) continue;
      split.bytes.mapped += std::max<int64_t>(0, std::min(part.end, expected_->adapters_begin) - part.begin);
      if (options_.on_arrived) options_.on_arrived(part.size());
    }
  }
  // Connecting, moving bytes and verifying are timed separately. Checks run inside Receive() as pieces arrive, so their
  // time is subtracted from the transfer's.
  const absl::Duration checked_before = check.busy();
  const absl::Time begun = options_.clock->Now();
  absl::Time connected = begun;
  request.on_arrived = [this, &check](ByteRange range, void* stream) {
    if (options_.on_arrived) options_.on_arrived(range.end - range.begin);
    check.Arrived(range, stream);
  };
  request.on_connected = [this, &connected] { connected = options_.clock->Now(); };
  request.on_writing = [this] { NoteOverwriting(); };
  const absl::Status moved = transport_->Receive(request, target_->shadow(), StopToken());
  // In place, the transfer overwrites the live base weights. Whatever the result, they count as absent until they are
  // verified.
  if (Overwrites()) live_base_ = 0;
  SYNCOPATE_RETURN_IF_ERROR(moved);
  const absl::Time arrived = options_.clock->Now();
  SYNCOPATE_ASSIGN_OR_RETURN(std::vector<uint64_t> digests, check.Finish(offer_.deadline - arrived));
  if (adapters_alone && live_verified_.expected != expected_) live_base_ = 0;  // so that the base is sent again
  SYNCOPATE_ASSIGN_OR_RETURN(digests, AllDigests(std::move(digests), adapters_alone));
  const absl::Status intact = CheckDigests(expected_->buckets, command.bucket_digests, digests);
  // The base weights that were copied may be damaged: have them sent again. What is shared was not touched, but if it
  // is not that of the version, it is not the base that its digest names.
  const bool base_differs =
      !adapters_alone || !std::equal(digests.begin(), digests.begin() + static_cast<int64_t>(expected_->first_adapter),
                                     expected_->buckets.begin(), [&command](uint64_t digest, const WireBucket& bucket) {
                                       return digest == command.bucket_digests[bucket.digest_index];
                                     });
  if (!intact.ok() && !self->base && base_differs) live_base_ = 0;
  SYNCOPATE_RETURN_IF_ERROR(intact);
  shadow_base_ = offer_.prepare.subset.base_digest;
  shadow_verified_ = {expected_, std::move(digests)};
  const absl::Duration checking = std::min(check.busy() - checked_before, arrived - connected);
  Received received;
  received.bytes = split.bytes;
  received.bytes_by_source.resize(static_cast<size_t>(offer_.planned->plan.sources()));
  for (const Copy& copy : request.copies) received.bytes_by_source[static_cast<size_t>(copy.source)] += copy.bytes;
  received.connect_seconds = absl::ToDoubleSeconds(connected - begun);
  received.transfer_seconds = absl::ToDoubleSeconds(arrived - connected - checking);
  received.verify_seconds = absl::ToDoubleSeconds(checked_before + checking + (options_.clock->Now() - arrived));
  return received;
}

absl::Status WeightReceiver::KeepBase(const std::vector<ByteRange>& kept) {
  const bool there = !kept.empty() && shadow_base_ == offer_.prepare.subset.base_digest;
  shadow_base_ = 0;  // until the transfer has been verified
  if (kept.empty() || there || target_->in_place() || target_->shares_base()) return absl::OkStatus();
  return target_->CopyLive(kept);
}

std::optional<LentMemory> WeightReceiver::BorrowBase(const synchronizer::Transfer& command, const SyncMember& self) {
  const bool may = self.base && options_.borrow_base && target_->maps_base() && !base_unmappable_;
  // Only one source has the whole base.
  if (!may || command.sources.size() != 1 || command.sources[0].base_rendezvous.empty()) return std::nullopt;
  absl::StatusOr<LentMemory> lent =
      options_.borrow_base(command.sources[0].base_rendezvous, offer_.deadline, StopToken());
  if (lent.ok()) return *std::move(lent);
  SYNCOPATE_LOG(kWarning, "the base weights are sent, because the trainer's cannot be mapped: %s",
                lent.status().ToString());
  return std::nullopt;
}

absl::Status WeightReceiver::PlaceBase(std::optional<LentMemory> lent) {
  if (!target_->maps_base()) return absl::OkStatus();  // it has memory of its own always
  // What served is gone from here on, as with the first byte of a transfer.
  NoteOverwriting();
  live_base_ = 0;
  if (!lent.has_value()) return target_->OwnBase();
  const absl::Status mapped = target_->MapBase(*std::move(lent));
  base_unmappable_ = !mapped.ok();
  return mapped;
}

absl::Status WeightReceiver::CheckSubset(const Subset& subset) const {
  if (!target_->shares_base() || subset.adapters.empty()) return absl::OkStatus();
  const std::vector<TensorSpec>& tensors = options_.manifest.tensors();
  const auto first = std::find_if(tensors.begin(), tensors.end(), [](const TensorSpec& spec) { return spec.adapter; });
  const TensorRange own{static_cast<int32_t>(first - tensors.begin()), static_cast<int32_t>(tensors.size())};
  if (subset.adapters.size() == 1 && subset.adapters[0] == own) return absl::OkStatus();
  return Refuse(reason::kModelMismatch, "the version differs from others in more or less than the model's adapters");
}

absl::StatusOr<std::vector<uint64_t>> WeightReceiver::AllDigests(std::vector<uint64_t> arrived,
                                                                 bool adapters_alone) const {
  if (!adapters_alone) return arrived;
  // The synchronizer sends the base to a receiver that does not name it, so this one has verified it.
  if (live_verified_.expected != expected_) {
    return Refuse(reason::kBaseLacking, "the base weights were verified for another plan; they are sent again");
  }
  std::vector<uint64_t> all = live_verified_.digests;
  std::copy(arrived.begin(), arrived.end(), all.begin() + static_cast<int64_t>(expected_->first_adapter));
  return all;
}

std::stop_token WeightReceiver::StopToken() const {
  MutexLock lock(&mutex_);
  return stop_.get_token();
}

// Whatever delays a pause (an evaluation) may outlast the version or the attempt, so both are checked while waiting.
absl::Status WeightReceiver::PauseIfInPlace(const ReceiveRequest& request, bool sends_base) {
  if (!IsInPlace(sends_base)) return absl::OkStatus();
  const std::stop_token stop = StopToken();
  for (;;) {
    // Generation stops only for a version that the sources have, not for a superseded one. Each iteration asks again,
    // because the version may be superseded before generation stops.
    SYNCOPATE_RETURN_IF_ERROR(transport_->Probe(request, stop));
    const absl::Duration left = offer_.deadline - options_.clock->Now();
    const absl::Status paused = target_->BeginInPlace(offer_.prepare.version, std::min(left, kPausePatience));
    if (paused.ok()) break;
    if (!absl::IsDeadlineExceeded(paused) || left <= kPausePatience) return paused;
    if (stop.stop_requested()) return Error(absl::StatusCode::kCancelled, "CANCELLED", "the attempt was ended");
  }
  MutexLock lock(&mutex_);
  in_place_ = InPlace::kStopped;
  return absl::OkStatus();
}

void WeightReceiver::NoteOverwriting() {
  MutexLock lock(&mutex_);
  if (in_place_ == InPlace::kStopped) in_place_ = InPlace::kOverwritten;
}

bool WeightReceiver::Overwrites() const {
  MutexLock lock(&mutex_);
  return in_place_ == InPlace::kOverwritten;
}

absl::Status WeightReceiver::CheckDigests(const std::vector<WireBucket>& buckets,
                                          const std::vector<uint64_t>& announced,
                                          const std::vector<uint64_t>& arrived) {
  for (size_t i = 0; i < arrived.size(); ++i) {
    if (arrived[i] == announced[buckets[i].digest_index]) continue;
    return Error(absl::StatusCode::kDataLoss, reason::kDigestMismatch,
                 absl::StrFormat("bucket %d of %d arrived damaged; it is fetched again", i, arrived.size()),
                 {{"bucket", absl::StrFormat("%d", i)}});
  }
  return absl::OkStatus();
}

absl::StatusOr<WeightReceiver::Installed> WeightReceiver::Install(const synchronizer::Install& command) {
  SYNCOPATE_RETURN_IF_ERROR(Enter(command.attempt, Phase::kVerified, Phase::kInstalling));
  const bool unchanged = already_serves_ && serving() == offer_.prepare.version;
  absl::StatusOr<Installed> installed =
      unchanged ? Installed{.relabelled = true, .unchanged = true} : CallTarget(already_serves_);
  if (installed.ok() && !already_serves_) {
    if (target_->in_place() || target_->shares_base()) {  // one base
      live_base_ = shadow_base_;
      live_verified_ = shadow_verified_;
      base_unmappable_ = false;  // what could not be mapped may be mapped when the base is lost the next time
    }
    shadow_base_ = live_base_.exchange(shadow_base_);
    std::swap(live_verified_, shadow_verified_);
  }
  if (installed.ok()) {
    MutexLock lock(&mutex_);
    serving_ = served_ = offer_.prepare.version;
    serving_digest_ = offer_.prepare.digest;
    in_place_ = InPlace::kNo;
    checked_since_sleep_ = false;  // the next sleep counts anew
  }
  AbandonInPlace();
  // The shadow contains the older weights now, or garbage: this attempt cannot succeed any more.
  Leave(Phase::kPrepared);
  return installed;
}

void WeightReceiver::WorkAfterReport() {
  // The report may have ended the attempt meanwhile; after that the weight sets need not be there.
  if (!target_->BeginAttempt().ok()) return;
  target_->RestoreShadow();
  target_->EndAttempt();
}

absl::StatusOr<WeightReceiver::Installed> WeightReceiver::CallTarget(bool relabel) {
  absl::Time begun = options_.clock->Now();
  absl::Duration left = offer_.deadline - begun;
  SYNCOPATE_ASSIGN_OR_RETURN(InstallResult result,
                             relabel ? target_->Relabel(offer_.prepare.version, left)
                                     : target_->Install(offer_.prepare.version, offer_.prepare.digest, left));
  return Installed{absl::ToDoubleSeconds(options_.clock->Now() - begun), result.pause_seconds, relabel};
}

void WeightReceiver::AbandonInPlace() {
  bool torn = false;
  {
    MutexLock lock(&mutex_);
    const InPlace left = std::exchange(in_place_, InPlace::kNo);
    if (left == InPlace::kNo) return;
    // Bytes were written, or nothing served before: continuing would generate with mixed weights.
    torn = left == InPlace::kOverwritten || serving_.IsNone();
    if (torn) serving_ = PolicyVersion();
    if (torn) serving_digest_ = 0;
  }
  if (!torn) return target_->CancelInPlace();
  target_->Invalidate();
  if (options_.on_lost) options_.on_lost();
}

void WeightReceiver::Finish(int64_t attempt) {
  rehearsal_.Finish(attempt);
  FinishIf([attempt](int64_t present) { return present == attempt; });
}

void WeightReceiver::FinishAny() {
  rehearsal_.FinishAny();
  FinishIf([](int64_t) { return true; });
}

void WeightReceiver::FinishIf(const std::function<bool(int64_t attempt)>& wanted) {
  std::stop_source stop(std::nostopstate);
  bool idle = false;
  {
    MutexLock lock(&mutex_);
    if (phase_ == Phase::kIdle || phase_ == Phase::kEnding || !wanted(attempt_)) return;
    // Only one thread may clear up: this one if no blocking call is in progress, else the thread in that call, when it
    // leaves.
    idle = phase_ == Phase::kPrepared || phase_ == Phase::kVerified;
    finished_ = true;
    if (idle) phase_ = Phase::kEnding;
    stop = stop_;
  }
  // Outside the lock: callbacks of the token run here and call this object.
  stop.request_stop();
  if (idle) ClearUp();  // else Leave clears up
}

void WeightReceiver::ClearUp() {
  ReceiverTransport* opened = nullptr;
  int64_t attempt = 0;
  {
    MutexLock lock(&mutex_);
    opened = std::exchange(opened_, nullptr);
    attempt = attempt_;
  }
  AbandonInPlace();
  if (opened != nullptr) opened->Close(attempt);
  ReleaseTarget();
  MutexLock lock(&mutex_);
  phase_ = Phase::kIdle;
}

absl::Status WeightReceiver::Enter(int64_t attempt, Phase from, Phase to) {
  MutexLock lock(&mutex_);
  if (attempt != attempt_ || phase_ != from) {
    return Refuse(to == Phase::kInstalling ? "NOT_VERIFIED" : reason::kNotPrepared,
                  absl::StrFormat("attempt %d is not ready for this command", attempt));
  }
  phase_ = to;
  return absl::OkStatus();
}

void WeightReceiver::Leave(Phase to) {
  bool finished = false;
  {
    MutexLock lock(&mutex_);
    finished = finished_;
    phase_ = finished ? Phase::kEnding : to;
  }
  if (finished) ClearUp();
}

PolicyVersion WeightReceiver::serving() const {
  if (HasLostWeights(target_->LastSleep()) || !target_->HasWeights()) return PolicyVersion();
  MutexLock lock(&mutex_);
  return serving_;
}

uint64_t WeightReceiver::serving_digest() const {
  if (HasLostWeights(target_->LastSleep()) || !target_->HasWeights()) return 0;
  MutexLock lock(&mutex_);
  return serving_digest_;
}

uint64_t WeightReceiver::base_digest() const {
  if (HasLostWeights(target_->LastSleep()) || !target_->HasWeights()) return 0;
  return target_->in_place() || target_->can_copy_live() ? live_base_.load() : 0;
}

}  // namespace syncopate::synchronizer
