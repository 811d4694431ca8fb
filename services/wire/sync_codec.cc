#include "services/wire/sync_codec.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/digest.h"
#include "services/rpc/status.h"
#include "services/wire/codec.h"
#include "syncopate/v1/records.pb.h"

namespace syncopate::wire {
namespace {

using synchronizer::SyncOutcome;

constexpr int kMaxTransports = 16;
constexpr int kMaxPeerGpus = 64;
constexpr size_t kMaxFactBytes = 256;  // of each text in a member's hello

absl::Status BadMessage(const std::string& message) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_MESSAGE", message);
}

v1::JoinResponse::Directory DirectoryToProto(const synchronizer::Directory& directory) {
  v1::JoinResponse::Directory message;
  message.set_trainer_address(directory.trainer_address);
  message.set_trainer_epoch(directory.trainer_epoch);
  *message.mutable_newest() = ToProto(directory.newest);
  message.set_completed(directory.completed);
  return message;
}

synchronizer::Directory DirectoryFromProto(const v1::JoinResponse::Directory& message) {
  return {message.trainer_address(), message.trainer_epoch(), FromProto(message.newest()), message.completed()};
}

v1::JoinResponse::Transfer::Participant ParticipantToProto(const synchronizer::SyncMember& member) {
  v1::JoinResponse::Transfer::Participant message;
  *message.mutable_member() = ToProto(member.id);
  message.set_rendezvous(member.rendezvous);
  message.set_adapters_only(!member.base);  // negated, so that a message without the field means all weights
  message.set_base_rendezvous(member.base_rendezvous);
  return message;
}

absl::StatusOr<synchronizer::SyncMember> ParticipantFromProto(const v1::JoinResponse::Transfer::Participant& message) {
  synchronizer::SyncMember member;
  SYNCOPATE_ASSIGN_OR_RETURN(member.id, FromProto(message.member()));
  member.rendezvous = message.rendezvous();
  member.base = !message.adapters_only();
  member.base_rendezvous = message.base_rendezvous();
  return member;
}

v1::JoinRequest::DeviceFacts FactsToProto(const synchronizer::DeviceFacts& facts) {
  v1::JoinRequest::DeviceFacts message;
  message.set_host(facts.host);
  message.set_gpu_uuid(facts.gpu_uuid);
  message.mutable_peer_gpus()->Assign(facts.peer_gpus.begin(), facts.peer_gpus.end());
  message.set_nvlink(facts.nvlink);
  message.set_nccl_version(facts.nccl_version);
  return message;
}

synchronizer::DeviceFacts FactsFromProto(const v1::JoinRequest::DeviceFacts& message) {
  return {message.host(),
          message.gpu_uuid(),
          {message.peer_gpus().begin(), message.peer_gpus().end()},
          message.nvlink(),
          message.nccl_version()};
}

// Writes a command into the one message of a JoinResponse.
struct CommandWriter {
  v1::JoinResponse& response;

  void operator()(const synchronizer::Welcome& welcome) const {
    auto* message = response.mutable_welcome();
    message->set_run_id(welcome.run_id);
    message->set_epoch(welcome.epoch);
    message->set_heartbeat_ms(absl::ToInt64Milliseconds(welcome.heartbeat));
    message->set_dead_after_ms(absl::ToInt64Milliseconds(welcome.dead_after));
    *message->mutable_directory() = DirectoryToProto(welcome.directory);
  }
  void operator()(const synchronizer::Directory& directory) const {
    *response.mutable_directory() = DirectoryToProto(directory);
  }
  void operator()(const synchronizer::Prepare& prepare) const {
    auto* message = response.mutable_prepare();
    message->set_attempt(prepare.attempt);
    message->set_rehearsal(prepare.rehearsal);
    *message->mutable_version() = ToProto(prepare.version);
    message->set_digest(prepare.digest);
    message->set_manifest_fingerprint(prepare.manifest_fingerprint);
    message->set_plan_hash(prepare.plan_hash);
    message->set_transport(prepare.transport);
    message->set_source(prepare.source);
    message->set_deadline_ms(absl::ToInt64Milliseconds(prepare.deadline));  // a duration: clocks of machines differ
    message->set_receivers(prepare.receivers);
    message->set_sources(prepare.sources);
    message->set_group(prepare.group);
    message->set_source_layout(prepare.source_layout);
    message->set_destination_layout(prepare.destination_layout);
    *message->mutable_subset() = ToProto(prepare.subset);
    message->set_check_weights(prepare.check_weights);
  }
  void operator()(const synchronizer::Transfer& transfer) const {
    auto* message = response.mutable_transfer();
    message->set_attempt(transfer.attempt);
    message->mutable_bucket_digests()->Assign(transfer.bucket_digests.begin(), transfer.bucket_digests.end());
    for (const synchronizer::SyncMember& member : transfer.sources)
      *message->add_sources() = ParticipantToProto(member);
    for (const synchronizer::SyncMember& member : transfer.receivers) {
      *message->add_receivers() = ParticipantToProto(member);
    }
    message->set_group(transfer.group);
  }
  void operator()(const synchronizer::Install& install) const {
    response.mutable_install()->set_attempt(install.attempt);
  }
  void operator()(const synchronizer::Finish& finish) const {
    response.mutable_finish()->set_attempt(finish.attempt);
    response.mutable_finish()->set_reason(finish.reason);
  }
  void operator()(const synchronizer::Evicted& evicted) const {
    response.mutable_evicted()->set_reason(evicted.reason);
  }
};

synchronizer::Welcome WelcomeFromProto(const v1::JoinResponse::Welcome& message) {
  return {message.run_id(), message.epoch(), absl::Milliseconds(message.heartbeat_ms()),
          absl::Milliseconds(message.dead_after_ms()), DirectoryFromProto(message.directory())};
}

synchronizer::Prepare PrepareFromProto(const v1::JoinResponse::Prepare& message) {
  synchronizer::Prepare prepare;
  prepare.attempt = message.attempt();
  prepare.rehearsal = message.rehearsal();
  prepare.version = FromProto(message.version());
  prepare.digest = message.digest();
  prepare.manifest_fingerprint = message.manifest_fingerprint();
  prepare.plan_hash = message.plan_hash();
  prepare.transport = message.transport();
  prepare.source = message.source();
  prepare.deadline = absl::Milliseconds(message.deadline_ms());
  prepare.receivers = message.receivers();
  prepare.sources = message.sources();
  prepare.group = message.group();
  prepare.source_layout = message.source_layout();
  prepare.destination_layout = message.destination_layout();
  prepare.subset = FromProto(message.subset());
  prepare.check_weights = message.check_weights();
  return prepare;
}

absl::StatusOr<synchronizer::Command> TransferFromProto(const v1::JoinResponse::Transfer& message) {
  synchronizer::Transfer transfer;
  transfer.attempt = message.attempt();
  for (const auto& participant : message.sources()) {
    SYNCOPATE_ASSIGN_OR_RETURN(synchronizer::SyncMember member, ParticipantFromProto(participant));
    transfer.sources.push_back(std::move(member));
  }
  for (const auto& participant : message.receivers()) {
    SYNCOPATE_ASSIGN_OR_RETURN(synchronizer::SyncMember member, ParticipantFromProto(participant));
    transfer.receivers.push_back(std::move(member));
  }
  transfer.group = message.group();
  transfer.bucket_digests.assign(message.bucket_digests().begin(), message.bucket_digests().end());
  return transfer;
}

// A phase that did not run is not in the map, and took exactly 0.0.
double GetSeconds(const v1::JoinRequest::SyncReport& message, const std::string& phase) {
  auto found = message.seconds().find(phase);
  return found == message.seconds().end() ? 0.0 : found->second;
}

// The texts of a hello are shown in tables and logs, and kept as long as the member: their length is bounded, and they
// cannot add lines to a log.
absl::Status CheckFacts(const v1::JoinRequest::Hello& message) {
  const v1::JoinRequest::DeviceFacts& facts = message.facts();
  if (facts.peer_gpus_size() > kMaxPeerGpus) return BadMessage("hello.facts.peer_gpus: too many");
  for (const std::string* text :
       {&facts.host(), &facts.gpu_uuid(), &facts.nccl_version(), &message.layout(), &message.destination_layout(),
        &message.start(), &message.run_id(), &message.address(), &message.metrics_address(),
        &message.endpoint_address(), &message.build()}) {
    const bool plain = std::none_of(text->begin(), text->end(), [](char c) { return absl::ascii_iscntrl(c); });
    if (text->size() > kMaxFactBytes || !plain) {
      return BadMessage(absl::StrCat("hello: its texts are at most ", kMaxFactBytes, " bytes of one line"));
    }
  }
  return absl::OkStatus();
}

// Names on disk and in the API: names may be added, but must never change.
constexpr std::pair<SyncOutcome, const char*> kOutcomeNames[] = {{SyncOutcome::kDone, "ok"},
                                                                 {SyncOutcome::kRelabelled, "relabelled"},
                                                                 {SyncOutcome::kSuperseded, "superseded"},
                                                                 {SyncOutcome::kFailed, "failed"}};
constexpr std::pair<const char*, int64_t synchronizer::PayloadBytes::*> kByteKinds[] = {
    {"full", &synchronizer::PayloadBytes::full},
    {"lora", &synchronizer::PayloadBytes::lora},
    {"delta", &synchronizer::PayloadBytes::delta},
    {"mapped", &synchronizer::PayloadBytes::mapped}};

v1::SyncTally::Times TimesToProto(const synchronizer::SyncTally::Times& times) {
  v1::SyncTally::Times message;
  for (const auto& [longest, count] : times.histogram.Classes()) {
    v1::SyncTally::Times::Class* one = message.add_classes();
    one->set_up_to_seconds(absl::ToDoubleSeconds(longest));
    one->set_count(count);
  }
  message.set_longest_seconds(absl::ToDoubleSeconds(times.longest));
  return message;
}

synchronizer::SyncTally::Times TimesFromProto(const v1::SyncTally::Times& message) {
  synchronizer::SyncTally::Times times;
  for (const auto& one : message.classes()) {
    // Plus half a microsecond, because a bound in seconds is not a whole number of microseconds.
    const absl::Duration longest = absl::Seconds(one.up_to_seconds()) + absl::Nanoseconds(500);
    // A negative count could only come from a damaged file; a start must not fail for the sake of statistics.
    times.histogram.Add(longest, std::max<int64_t>(0, one.count()));
  }
  times.longest = absl::Seconds(std::max(0.0, message.longest_seconds()));
  return times;
}

std::string EncodeLedgerRecord(const synchronizer::LedgerRecord& record) {
  v1::SynchronizerLogRecord message;
  if (const auto* run = std::get_if<synchronizer::RunIdRecord>(&record)) {
    message.set_run_id(run->run_id);
  } else if (const auto* epoch = std::get_if<synchronizer::EpochRecord>(&record)) {
    message.set_epoch(epoch->epoch);
  } else if (const auto* completed = std::get_if<synchronizer::CompletedRecord>(&record)) {
    message.set_completed_epoch(completed->epoch);
  } else if (const auto* part = std::get_if<synchronizer::PublishedPart>(&record)) {
    auto* out = message.mutable_part();
    *out->mutable_version() = ToProto(part->version);
    out->set_rank(part->rank);
    out->set_world(part->world);
    out->set_begin(part->begin);
    out->mutable_bucket_digests()->Assign(part->bucket_digests.begin(), part->bucket_digests.end());
    out->set_unix_seconds(part->unix_seconds);
    *out->mutable_subset() = ToProto(part->subset);
  } else {
    const auto& published = std::get<synchronizer::PublishedVersion>(record);
    auto* out = message.mutable_published();
    *out->mutable_version() = ToProto(published.version);
    out->mutable_bucket_digests()->Assign(published.bucket_digests.begin(), published.bucket_digests.end());
    out->set_unix_seconds(published.unix_seconds);
    *out->mutable_subset() = ToProto(published.subset);
  }
  return message.SerializeAsString();
}

std::string EncodeSyncs(const synchronizer::SyncTally& syncs) {
  v1::SynchronizerLogRecord message;
  *message.mutable_syncs() = ToProto(syncs);
  return message.SerializeAsString();
}

using StateRecord = std::variant<synchronizer::LedgerRecord, synchronizer::SyncTally>;

absl::StatusOr<StateRecord> DecodeStateRecord(const std::string& bytes) {
  v1::SynchronizerLogRecord message;
  if (!message.ParseFromString(bytes)) {
    return Error(absl::StatusCode::kDataLoss, "BAD_LEDGER", "a record that is no synchronizer state");
  }
  switch (message.record_case()) {
    case v1::SynchronizerLogRecord::kRunId:
      return synchronizer::LedgerRecord(synchronizer::RunIdRecord{message.run_id()});
    case v1::SynchronizerLogRecord::kEpoch:
      return synchronizer::LedgerRecord(synchronizer::EpochRecord{message.epoch()});
    case v1::SynchronizerLogRecord::kCompletedEpoch:
      return synchronizer::LedgerRecord(synchronizer::CompletedRecord{message.completed_epoch()});
    case v1::SynchronizerLogRecord::kPublished: {
      const auto& in = message.published();
      synchronizer::PublishedVersion published;
      published.version = FromProto(in.version());
      published.bucket_digests.assign(in.bucket_digests().begin(), in.bucket_digests().end());
      // Not stored: it follows from the digests of the buckets, and two stored values could differ.
      published.digest = CombineDigests(published.bucket_digests);
      published.unix_seconds = in.unix_seconds();
      published.subset = FromProto(in.subset());
      return synchronizer::LedgerRecord(std::move(published));
    }
    // Logs of earlier builds contain parts; this build writes whole versions only.
    case v1::SynchronizerLogRecord::kPart: {
      const auto& in = message.part();
      return synchronizer::LedgerRecord(
          synchronizer::PublishedPart{FromProto(in.version()),
                                      in.rank(),
                                      in.world(),
                                      in.begin(),
                                      {in.bucket_digests().begin(), in.bucket_digests().end()},
                                      in.unix_seconds(),
                                      FromProto(in.subset())});
    }
    case v1::SynchronizerLogRecord::kSyncs:
      return FromProto(message.syncs());
    case v1::SynchronizerLogRecord::RECORD_NOT_SET:
      break;
  }
  // A newer build wrote this record. Skipping it could mean forgetting a published version.
  return BadMessage("a record of the synchronizer's state is of a kind that this build does not know");
}

}  // namespace

v1::JoinRequest::Hello ToProto(const synchronizer::Hello& hello) {
  v1::JoinRequest::Hello message;
  *message.mutable_member() = ToProto(hello.member);
  message.set_run_id(hello.run_id);
  message.set_address(hello.address);
  message.set_metrics_address(hello.metrics_address);
  message.set_endpoint_address(hello.endpoint_address);
  // A rollouter first joins without a manifest, to learn the trainer's address: the trainer tells it the model.
  if (hello.manifest != nullptr) *message.mutable_manifest() = ToProto(*hello.manifest);
  message.mutable_transports()->Assign(hello.transports.begin(), hello.transports.end());
  *message.mutable_serving() = ToProto(hello.serving);
  message.set_serving_digest(hello.serving_digest);
  message.set_held(hello.held);
  message.set_base_digest(hello.base_digest);
  message.set_held_epoch(hello.held_epoch);
  message.set_checkpoint_epoch(hello.checkpoint_epoch);
  message.set_build(hello.build);
  *message.mutable_facts() = FactsToProto(hello.facts);
  message.set_layout(hello.layout);
  message.set_destination_layout(hello.destination_layout);
  message.set_start(hello.start);
  return message;
}

absl::StatusOr<synchronizer::Hello> FromProto(const v1::JoinRequest::Hello& message) {
  synchronizer::Hello hello;
  SYNCOPATE_ASSIGN_OR_RETURN(hello.member, FromProto(message.member()));
  if (message.has_manifest()) {
    SYNCOPATE_ASSIGN_OR_RETURN(Manifest manifest, FromProto(message.manifest()));
    hello.manifest = std::make_shared<const Manifest>(std::move(manifest));
  }
  if (message.held_epoch() < 0 || message.checkpoint_epoch() < 0) return BadMessage("hello: an epoch is negative");
  if (message.transports_size() > kMaxTransports) return BadMessage("hello.transports: too many");
  SYNCOPATE_RETURN_IF_ERROR(CheckFacts(message));
  hello.run_id = message.run_id();
  hello.address = message.address();
  hello.metrics_address = message.metrics_address();
  hello.endpoint_address = message.endpoint_address();
  hello.transports.assign(message.transports().begin(), message.transports().end());
  hello.serving = FromProto(message.serving());
  hello.serving_digest = message.serving_digest();
  hello.held = message.held();
  hello.base_digest = message.base_digest();
  hello.held_epoch = message.held_epoch();
  hello.checkpoint_epoch = message.checkpoint_epoch();
  hello.build = message.build();
  hello.facts = FactsFromProto(message.facts());
  hello.layout = message.layout();
  hello.destination_layout = message.destination_layout();
  hello.start = message.start();
  return hello;
}

v1::JoinRequest::SyncReport ToProto(const synchronizer::SyncReport& report) {
  v1::JoinRequest::SyncReport message;
  message.set_attempt(report.attempt);
  message.set_stage(static_cast<v1::Stage>(report.stage));
  if (!report.status.ok()) *message.mutable_error() = rpc::ToProto(report.status);
  message.set_already_held(report.already_serves);
  if (report.stage == synchronizer::SyncStage::kTransfer) {
    (*message.mutable_seconds())["verify"] = report.verify_seconds;
    (*message.mutable_seconds())["connect"] = report.connect_seconds;
    message.mutable_bytes_by_source()->Assign(report.bytes_by_source.begin(), report.bytes_by_source.end());
  }
  message.set_base_present(report.weights.base_present);
  message.set_sleep_level(report.weights.sleep_level);
  message.set_free_cache_engine(report.weights.free_cache_engine);
  message.set_slept(report.weights.slept);
  message.set_bytes(report.bytes);
  message.set_lora_bytes(report.lora_bytes);
  message.set_mapped_bytes(report.mapped_bytes);
  message.set_pause_seconds(report.pause_seconds);
  message.set_rendezvous(report.rendezvous);
  message.set_base_rendezvous(report.base_rendezvous);
  return message;
}

absl::StatusOr<synchronizer::SyncReport> FromProto(const v1::JoinRequest::SyncReport& message) {
  // proto3 keeps unknown enum values, and the cast below would keep them too.
  if (message.stage() < v1::STAGE_PREPARE || message.stage() > v1::STAGE_INSTALL) {
    return BadMessage(absl::StrCat("report.stage ", static_cast<int>(message.stage()), " is not known"));
  }
  synchronizer::SyncReport report;
  report.attempt = message.attempt();
  report.stage = static_cast<synchronizer::SyncStage>(message.stage());
  if (message.has_error()) report.status = rpc::FromProto(message.error());
  report.already_serves = message.already_held();
  report.verify_seconds = GetSeconds(message, "verify");
  report.connect_seconds = GetSeconds(message, "connect");
  report.weights.base_present = message.base_present();
  report.weights.sleep_level = message.sleep_level();
  report.weights.free_cache_engine = message.free_cache_engine();
  report.weights.slept = message.slept();
  report.bytes = message.bytes();
  report.lora_bytes = message.lora_bytes();
  report.mapped_bytes = message.mapped_bytes();
  report.bytes_by_source.assign(message.bytes_by_source().begin(), message.bytes_by_source().end());
  report.pause_seconds = message.pause_seconds();
  report.rendezvous = message.rendezvous();
  report.base_rendezvous = message.base_rendezvous();
  // These durations are summed over a run: one negative or NaN value would spoil the sum.
  auto lasts = [](double seconds) { return seconds >= 0 && std::isfinite(seconds); };
  bool sane = lasts(report.verify_seconds) && lasts(report.connect_seconds) && lasts(report.pause_seconds) &&
              report.lora_bytes >= 0 && report.bytes >= report.lora_bytes && report.mapped_bytes >= 0 &&
              std::all_of(report.bytes_by_source.begin(), report.bytes_by_source.end(),
                          [&report](int64_t bytes) { return bytes >= 0 && bytes <= report.bytes; });
  if (!sane) return BadMessage("report: a time or a number of bytes is negative or none");
  return report;
}

v1::JoinResponse ToProto(const synchronizer::Command& command) {
  v1::JoinResponse response;
  std::visit(CommandWriter{response}, command);
  return response;
}

absl::StatusOr<synchronizer::Command> FromProto(const v1::JoinResponse& message) {
  switch (message.message_case()) {
    case v1::JoinResponse::kWelcome:
      return WelcomeFromProto(message.welcome());
    case v1::JoinResponse::kDirectory:
      return DirectoryFromProto(message.directory());
    case v1::JoinResponse::kPrepare:
      return PrepareFromProto(message.prepare());
    case v1::JoinResponse::kTransfer:
      return TransferFromProto(message.transfer());
    case v1::JoinResponse::kInstall:
      return synchronizer::Install{message.install().attempt()};
    case v1::JoinResponse::kFinish:
      return synchronizer::Finish{message.finish().attempt(), message.finish().reason()};
    case v1::JoinResponse::kEvicted:
      return synchronizer::Evicted{message.evicted().reason()};
    case v1::JoinResponse::MESSAGE_NOT_SET:
      break;
  }
  return BadMessage("the synchronizer sent a command that this build does not know");
}

v1::Subset ToProto(const synchronizer::Subset& subset) {
  v1::Subset message;
  for (const synchronizer::TensorRange& range : subset.adapters) {
    auto* adapters = message.add_adapters();
    adapters->set_begin(range.begin);
    adapters->set_end(range.end);
  }
  message.set_base_digest(subset.base_digest);
  return message;
}

synchronizer::Subset FromProto(const v1::Subset& message) {
  synchronizer::Subset subset;
  for (const auto& range : message.adapters()) subset.adapters.push_back({range.begin(), range.end()});
  subset.base_digest = message.base_digest();
  return subset;
}

v1::SyncRecord ToProto(const synchronizer::SyncRecord& record, double ended_unix_seconds) {
  v1::SyncRecord message;
  message.set_attempt(record.attempt);
  *message.mutable_version() = ToProto(record.version);
  message.set_replica_id(record.replica_id);
  message.set_transport(record.transport);
  message.set_transport_reason(record.transport_reason);
  message.set_result(record.result());
  message.set_detail(record.detail);
  message.set_bytes(record.bytes);
  for (const auto& [name, bytes] : kByteKinds) (*message.mutable_bytes_by_kind())[name] = record.bytes_by_kind.*bytes;
  message.mutable_bytes_by_source()->Assign(record.bytes_by_source.begin(), record.bytes_by_source.end());
  for (const auto& [stage, seconds] : synchronizer::kStages)
    (*message.mutable_seconds())[stage] = record.seconds.*seconds;
  const double transfer = record.seconds.transfer;  // 0 if nothing was sent: then there is no rate
  message.set_gigabytes_per_second(transfer > 0 ? 1e-9 * static_cast<double>(record.bytes) / transfer : 0.0);
  message.set_pause_seconds(record.pause_seconds);
  message.set_ended_unix_seconds(ended_unix_seconds);
  return message;
}

v1::SyncTally ToProto(const synchronizer::SyncTally& syncs) {
  v1::SyncTally message;
  for (const auto& [outcome, name] : kOutcomeNames) {
    if (const int64_t count = syncs.Count(outcome); count > 0) (*message.mutable_counts())[name] = count;
  }
  for (const auto& [name, bytes] : kByteKinds) (*message.mutable_bytes_by_kind())[name] = syncs.sums().bytes.*bytes;
  *message.mutable_total() = TimesToProto(syncs.sums().total);
  *message.mutable_pause() = TimesToProto(syncs.sums().pause);
  return message;
}

synchronizer::SyncTally FromProto(const v1::SyncTally& message) {
  synchronizer::SyncTally::Sums sums;
  for (const auto& [outcome, name] : kOutcomeNames) {
    const auto found = message.counts().find(name);
    // Unknown names are ignored: a newer build's figure must not prevent a start.
    if (found != message.counts().end()) sums.outcomes[outcome] = std::max<int64_t>(0, found->second);
  }
  for (const auto& [name, bytes] : kByteKinds) {
    const auto found = message.bytes_by_kind().find(name);
    if (found != message.bytes_by_kind().end()) sums.bytes.*bytes = std::max<int64_t>(0, found->second);
  }
  sums.total = TimesFromProto(message.total());
  sums.pause = TimesFromProto(message.pause());
  return synchronizer::SyncTally(std::move(sums));
}

const synchronizer::StateCodec& ProtoStateCodec() {
  static constexpr synchronizer::StateCodec kCodec = {EncodeLedgerRecord, EncodeSyncs, DecodeStateRecord};
  return kCodec;
}

}  // namespace syncopate::wire
