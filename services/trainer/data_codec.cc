#include "services/trainer/data_codec.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "services/wire/codec.h"
#include "syncopate/v1/records.pb.h"
#include "trainer/data/prompt_queue.h"

namespace syncopate::trainerd {
namespace {

using trainer::DropReason;

absl::Status BadRecord(const std::string& text) {
  return Error(absl::StatusCode::kDataLoss, "BAD_RECORD", absl::StrCat("a record of the trainer's log ", text));
}

// Reported with the remedy, because a damaged position cannot be repaired from the log alone.
absl::Status BadSnapshot(const std::string& text) {
  return Error(absl::StatusCode::kDataLoss, "BAD_SNAPSHOT",
               absl::StrCat("the data position of the checkpoint ", text, "; resume from another checkpoint"));
}

template <typename Message>
bool Parse(absl::string_view bytes, Message* message) {
  return message->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
}

v1::TrainerLogRecord ToMessage(const trainer::LogRecord& record) {
  v1::TrainerLogRecord message;
  if (const auto* accepted = std::get_if<trainer::AcceptedRecord>(&record)) {
    *message.mutable_accepted()->mutable_group() = wire::ToProto(*accepted->group);
    *message.mutable_accepted()->mutable_admitted() = wire::ToProto(accepted->admitted);
  } else if (const auto* take = std::get_if<trainer::TakeRecord>(&record)) {
    *message.mutable_take()->mutable_produces() = wire::ToProto(take->produces);
    for (const LeaseId& lease : take->groups) *message.mutable_take()->add_groups() = wire::ToProto(lease);
    message.mutable_take()->set_supervised(take->supervised);
  } else {
    const auto& drop = std::get<trainer::DropRecord>(record);
    *message.mutable_drop()->mutable_lease() = wire::ToProto(drop.lease);
    message.mutable_drop()->set_reason(trainer::DropReasonName(drop.reason));
  }
  return message;
}

// Encoded by name, which stays the same when reasons are added or reordered.
absl::StatusOr<DropReason> DecodeReason(const std::string& name) {
  for (DropReason reason : {DropReason::kFiltered, DropReason::kFailed, DropReason::kStale, DropReason::kRolledBack,
                            DropReason::kSkipped, DropReason::kPastDeadline}) {
    if (name == trainer::DropReasonName(reason)) return reason;
  }
  return BadRecord(absl::StrCat("drops a group for the unknown reason '", name, "'"));
}

// Encoded as differences: sixty thousand groups in order are mostly zeros and ones, which take a byte each.
void EncodeAccepted(const std::vector<LeaseId>& accepted, v1::DataState::ConsumedAttempts* message) {
  GroupId last;
  for (const LeaseId& lease : accepted) {
    message->add_passes(lease.group.pass - last.pass);
    message->add_ordinals(lease.group.ordinal - last.ordinal);
    message->add_attempts(lease.attempt);
    last = lease.group;
  }
}

absl::StatusOr<std::vector<LeaseId>> DecodeAccepted(const v1::DataState::ConsumedAttempts& message,
                                                    const GroupId& next) {
  const int count = message.attempts_size();
  // The file may have been cut or changed by hand, so the three lists must have one length, and at most the length that
  // is ever kept.
  if (message.passes_size() != count || message.ordinals_size() != count ||
      count > static_cast<int>(trainer::PromptQueue::kRemembered)) {
    return BadSnapshot("tells the groups that were consumed last in lists that do not agree, or are too long");
  }
  // Wraps around if the bytes are nonsense: signed overflow would be undefined.
  auto plus = [](int64_t a, int64_t b) {
    return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  };
  std::vector<LeaseId> accepted;
  GroupId group;
  for (int i = 0; i < count; ++i) {
    group = {plus(group.pass, message.passes(i)), plus(group.ordinal, message.ordinals(i))};
    // A group that was never leased cannot have been answered.
    if (group < GroupId() || group >= next) {
      return BadSnapshot(absl::StrCat("calls ", group.ToString(), " consumed, which comes after ", next.ToString()));
    }
    accepted.push_back({group, message.attempts(i)});
  }
  return accepted;
}

}  // namespace

std::string EncodeLogRecord(const trainer::LogRecord& record) { return ToMessage(record).SerializeAsString(); }

absl::StatusOr<trainer::LogRecord> DecodeLogRecord(absl::string_view bytes) {
  v1::TrainerLogRecord message;
  if (!Parse(bytes, &message)) return BadRecord("cannot be parsed");
  switch (message.record_case()) {
    case v1::TrainerLogRecord::kAccepted: {
      auto group = wire::FromProto(message.accepted().group());
      if (!group.ok()) return BadRecord(absl::StrCat("contains a bad group: ", group.status().message()));
      return trainer::AcceptedRecord{wire::FromProto(message.accepted().admitted()),
                                     std::make_shared<const TrajectoryGroup>(*std::move(group))};
    }
    case v1::TrainerLogRecord::kTake: {
      trainer::TakeRecord take{wire::FromProto(message.take().produces())};
      for (const v1::LeaseId& lease : message.take().groups()) take.groups.push_back(wire::FromProto(lease));
      take.supervised = message.take().supervised();
      return take;
    }
    case v1::TrainerLogRecord::kDrop: {
      SYNCOPATE_ASSIGN_OR_RETURN(DropReason reason, DecodeReason(message.drop().reason()));
      return trainer::DropRecord{wire::FromProto(message.drop().lease()), reason};
    }
    case v1::TrainerLogRecord::RECORD_NOT_SET:
      break;
  }
  // A newer build wrote this record: its meaning cannot be guessed, and skipping it would train groups twice.
  return BadRecord("is of no known kind");
}

namespace {

v1::TrainingSums ToMessage(const trainer::TrainingSums& sums) {
  v1::TrainingSums message;
  message.set_accepted(sums.accepted);
  message.set_filtered(sums.filtered);
  message.set_dropped_stale(sums.dropped_stale);
  message.set_rolled_back(sums.rolled_back);
  message.set_trained(sums.trained);
  message.set_skipped(sums.skipped);
  message.set_failed(sums.failed);
  message.set_past_deadline(sums.past_deadline);
  message.set_masked_tokens(sums.staleness.masked_tokens);
  message.mutable_trained_tokens()->Add(sums.staleness.tokens.begin(), sums.staleness.tokens.end());
  message.set_mixed_groups(sums.staleness.mixed_groups);
  message.set_violating_groups(sums.staleness.violating_groups);
  message.set_counted_to(sums.counted_to);
  message.set_supervised_tokens(sums.supervised_tokens);
  message.set_trained_samples(sums.trained_samples);
  return message;
}

absl::StatusOr<trainer::TrainingSums> FromMessage(const v1::TrainingSums& message) {
  std::vector<int64_t> tokens(message.trained_tokens().begin(), message.trained_tokens().end());
  const int64_t counts[] = {message.accepted(),         message.filtered(), message.dropped_stale(),
                            message.rolled_back(),      message.trained(),  message.mixed_groups(),
                            message.violating_groups(), message.skipped(),  message.supervised_tokens(),
                            message.trained_samples(),  message.failed(),   message.past_deadline(),
                            message.masked_tokens()};
  auto is_negative = [](int64_t count) { return count < 0; };
  if (std::any_of(std::begin(counts), std::end(counts), is_negative) ||
      std::any_of(tokens.begin(), tokens.end(), is_negative)) {
    return BadSnapshot("counts fewer groups or tokens than none");
  }
  return trainer::TrainingSums{.accepted = message.accepted(),
                               .filtered = message.filtered(),
                               .dropped_stale = message.dropped_stale(),
                               .rolled_back = message.rolled_back(),
                               .trained = message.trained(),
                               .trained_samples = message.trained_samples(),
                               .supervised_tokens = message.supervised_tokens(),
                               .skipped = message.skipped(),
                               .failed = message.failed(),
                               .past_deadline = message.past_deadline(),
                               .staleness = {.tokens = std::move(tokens),
                                             .masked_tokens = message.masked_tokens(),
                                             .groups = message.trained(),
                                             .mixed_groups = message.mixed_groups(),
                                             .violating_groups = message.violating_groups()},
                               .counted_to = message.counted_to()};
}

}  // namespace

std::string EncodeDataState(const trainer::DataState& state) {
  v1::DataState message;
  message.set_pass(state.next.pass);
  message.set_next_ordinal(state.next.ordinal);
  for (const auto& [group, attempt] : state.attempts) {
    v1::DataState::AttemptCount* count = message.add_attempts();
    *count->mutable_group() = wire::ToProto(group);
    count->set_attempt(attempt);
  }
  for (const GroupId& group : state.consumed_above) *message.add_consumed_above() = wire::ToProto(group);
  *message.mutable_consumed_below() = wire::ToProto(state.consumed_below);
  EncodeAccepted(state.accepted, message.mutable_accepted());
  *message.mutable_sums() = ToMessage(state.sums);
  return message.SerializeAsString();
}

absl::StatusOr<trainer::DataState> DecodeDataState(absl::string_view bytes) {
  v1::DataState message;
  if (!Parse(bytes, &message)) return BadSnapshot("cannot be parsed");
  trainer::DataState state{.next = {message.pass(), message.next_ordinal()},
                           .consumed_below = wire::FromProto(message.consumed_below())};
  const GroupId first;
  // The queue counts from one to the other: in the wrong order it would count for ever.
  if (state.consumed_below < first || state.next < state.consumed_below) {
    return BadSnapshot(absl::StrCat("says that all before ", state.consumed_below.ToString(), " is consumed and ",
                                    state.next.ToString(), " comes next"));
  }
  for (const v1::GroupId& group : message.consumed_above()) {
    state.consumed_above.push_back(wire::FromProto(group));
    if (state.consumed_above.back() < state.consumed_below || state.consumed_above.back() >= state.next) {
      return BadSnapshot(absl::StrCat("lists ", state.consumed_above.back().ToString(), " outside its range"));
    }
  }
  for (const v1::DataState::AttemptCount& count : message.attempts()) {
    state.attempts[wire::FromProto(count.group())] = count.attempt();
  }
  SYNCOPATE_ASSIGN_OR_RETURN(state.accepted, DecodeAccepted(message.accepted(), state.next));
  SYNCOPATE_ASSIGN_OR_RETURN(state.sums, FromMessage(message.sums()));
  return state;
}

namespace {

class ProtoCodec final : public trainer::RecordCodec {
 public:
  std::string EncodeLogRecord(const trainer::LogRecord& record) const override {
    return trainerd::EncodeLogRecord(record);
  }
  absl::StatusOr<trainer::LogRecord> DecodeLogRecord(absl::string_view bytes) const override {
    return trainerd::DecodeLogRecord(bytes);
  }
  std::string EncodeDataState(const trainer::DataState& state) const override {
    return trainerd::EncodeDataState(state);
  }
  absl::StatusOr<trainer::DataState> DecodeDataState(absl::string_view bytes) const override {
    return trainerd::DecodeDataState(bytes);
  }
};

}  // namespace

const trainer::RecordCodec& ProtoRecordCodec() {
  static const auto* const codec = new ProtoCodec();
  return *codec;
}

}  // namespace syncopate::trainerd
