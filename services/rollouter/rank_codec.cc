#include "services/rollouter/rank_codec.h"

#include <memory>
#include <utility>

#include "base/status.h"
#include "services/wire/codec.h"

namespace syncopate::rollouterd {
namespace {

using rollouter::EngineCommand;
using rollouter::StepPlan;
using Ints = google::protobuf::RepeatedField<int32_t>;

absl::Status Damaged() {
  return Error(absl::StatusCode::kInternal, "RANK_MISMATCH", "rank 0 says what this build does not know");
}

v1::ReplicaServiceAttendResponse::MakeRunner ToProto(const rollouter::RunnerOptions& options) {
  v1::ReplicaServiceAttendResponse::MakeRunner message;
  message.set_max_sequences(options.max_sequences);
  message.set_max_prefill_tokens(options.max_prefill_tokens);
  message.set_max_context(options.max_context);
  message.set_blocks(options.blocks);
  message.set_host_blocks(options.host_blocks);
  message.set_plans_under_way(options.plans_under_way);
  message.set_deterministic(options.deterministic);
  return message;
}

rollouter::RunnerOptions FromProto(const v1::ReplicaServiceAttendResponse::MakeRunner& message) {
  return {.max_sequences = message.max_sequences(),
          .max_prefill_tokens = message.max_prefill_tokens(),
          .max_context = message.max_context(),
          .blocks = message.blocks(),
          .host_blocks = message.host_blocks(),
          .plans_under_way = message.plans_under_way(),
          .deterministic = message.deterministic()};
}

v1::ReplicaServiceAttendResponse::Start ToProto(const rollouter::SlotStart& start) {
  v1::ReplicaServiceAttendResponse::Start message;
  message.set_slot(start.slot);
  message.set_key(start.key);
  message.set_sample(start.sample);
  message.set_seed(start.seed);
  // Rank 0 shares prompt and sampling among the samples of a group; each start on the wire has its own copy.
  message.mutable_prompt()->Add(start.prompt->begin(), start.prompt->end());
  *message.mutable_sampling() = wire::ToProto(*start.sampling);
  message.mutable_drawn()->Add(start.drawn.begin(), start.drawn.end());
  message.set_adapter(static_cast<int32_t>(start.adapter));
  return message;
}

rollouter::SlotStart FromProto(const v1::ReplicaServiceAttendResponse::Start& message) {
  return {.slot = message.slot(),
          .key = message.key(),
          .sample = message.sample(),
          .seed = message.seed(),
          .prompt = std::make_shared<std::vector<int32_t>>(message.prompt().begin(), message.prompt().end()),
          .sampling = std::make_shared<SamplingParams>(wire::FromProto(message.sampling())),
          .drawn = {message.drawn().begin(), message.drawn().end()},
          .adapter = message.adapter()};
}

// A plan goes to every rank before every step, so lists of small numbers are flat: one message for each pair or triple
// would cost more than its contents. Pairs: `swaps_*` and `rows`; triples: `copies` and `tables`.
v1::ReplicaServiceAttendResponse::Plan ToProto(const StepPlan& plan) {
  v1::ReplicaServiceAttendResponse::Plan message;
  message.set_id(plan.id);
  message.set_live_set(plan.live_set);
  *message.mutable_version() = wire::ToProto(plan.version);
  auto add = [](Ints* list, std::initializer_list<int32_t> numbers) {
    for (int32_t number : numbers) list->Add(number);
  };
  for (const auto& swap : plan.swaps_out) add(message.mutable_swaps_out(), {swap.block, swap.host_block});
  for (const auto& swap : plan.swaps_in) add(message.mutable_swaps_in(), {swap.block, swap.host_block});
  for (const auto& copy : plan.copies) add(message.mutable_copies(), {copy.from, copy.to, copy.tokens});
  for (const auto& start : plan.starts) *message.add_starts() = ToProto(start);
  for (const auto& entry : plan.tables) add(message.mutable_tables(), {entry.slot, entry.index, entry.block});
  for (const auto& chunk : plan.chunks) {
    v1::ReplicaServiceAttendResponse::Chunk* one = message.add_chunks();
    one->set_slot(chunk.slot);
    one->set_begin(chunk.begin);
    one->mutable_tokens()->Add(chunk.tokens.begin(), chunk.tokens.end());
    one->mutable_draws()->Add(chunk.draws.begin(), chunk.draws.end());
  }
  for (const auto& row : plan.rows) add(message.mutable_rows(), {row.slot, row.position});
  return message;
}

absl::StatusOr<StepPlan> FromProto(const v1::ReplicaServiceAttendResponse::Plan& message) {
  const bool is_whole = message.swaps_out_size() % 2 == 0 && message.swaps_in_size() % 2 == 0 &&
                        message.copies_size() % 3 == 0 && message.tables_size() % 3 == 0 &&
                        message.rows_size() % 2 == 0;
  // Ranks have the same build, so this should not happen; if it does, half a plan must not run: the ranks would diverge
  // for good.
  if (!is_whole) return Damaged();
  StepPlan plan;
  plan.id = message.id();
  plan.live_set = message.live_set();
  plan.version = wire::FromProto(message.version());
  const Ints& out = message.swaps_out();
  for (int i = 0; i < out.size(); i += 2) plan.swaps_out.push_back({out[i], out[i + 1]});
  const Ints& in = message.swaps_in();
  for (int i = 0; i < in.size(); i += 2) plan.swaps_in.push_back({in[i], in[i + 1]});
  const Ints& copies = message.copies();
  for (int i = 0; i < copies.size(); i += 3) plan.copies.push_back({copies[i], copies[i + 1], copies[i + 2]});
  for (const auto& start : message.starts()) plan.starts.push_back(FromProto(start));
  const Ints& tables = message.tables();
  for (int i = 0; i < tables.size(); i += 3) plan.tables.push_back({tables[i], tables[i + 1], tables[i + 2]});
  for (const auto& chunk : message.chunks()) {
    plan.chunks.push_back({.slot = chunk.slot(),
                           .begin = chunk.begin(),
                           .tokens = {chunk.tokens().begin(), chunk.tokens().end()},
                           .draws = {chunk.draws().begin(), chunk.draws().end()}});
  }
  const Ints& rows = message.rows();
  for (int i = 0; i < rows.size(); i += 2) plan.rows.push_back({rows[i], rows[i + 1]});
  return plan;
}

}  // namespace

v1::ReplicaServiceAttendResponse ToProto(const EngineCommand& command) {
  v1::ReplicaServiceAttendResponse message;
  switch (command.kind) {
    case EngineCommand::Kind::kMakeRunner:
      *message.mutable_make_runner() = ToProto(command.runner);
      break;
    case EngineCommand::Kind::kPlan:
      *message.mutable_plan() = ToProto(command.plan);
      break;
    case EngineCommand::Kind::kExchange:
      *message.mutable_exchange()->mutable_version() = wire::ToProto(command.version);
      message.mutable_exchange()->set_digest(command.digest);
      break;
    case EngineCommand::Kind::kBeginInPlace:
      *message.mutable_begin_in_place()->mutable_version() = wire::ToProto(command.version);
      break;
    case EngineCommand::Kind::kReleaseWeights:
      message.mutable_release_weights()->set_keep_live(command.keep_live);
      break;
    case EngineCommand::Kind::kRestoreWeights:
      message.mutable_restore_weights();
      break;
    case EngineCommand::Kind::kReleaseBlocks:
      message.mutable_release_blocks();
      break;
    case EngineCommand::Kind::kRestoreBlocks:
      message.mutable_restore_blocks();
      break;
    case EngineCommand::Kind::kChooseShadow:
      message.mutable_choose_shadow()->set_set(command.set);
      break;
  }
  return message;
}

absl::StatusOr<EngineCommand> FromProto(const v1::ReplicaServiceAttendResponse& message) {
  EngineCommand command;
  switch (message.message_case()) {
    case v1::ReplicaServiceAttendResponse::kMakeRunner:
      command.kind = EngineCommand::Kind::kMakeRunner;
      command.runner = FromProto(message.make_runner());
      return command;
    case v1::ReplicaServiceAttendResponse::kPlan: {
      command.kind = EngineCommand::Kind::kPlan;
      SYNCOPATE_ASSIGN_OR_RETURN(command.plan, FromProto(message.plan()));
      return command;
    }
    case v1::ReplicaServiceAttendResponse::kExchange:
      command.kind = EngineCommand::Kind::kExchange;
      command.version = wire::FromProto(message.exchange().version());
      command.digest = message.exchange().digest();
      return command;
    case v1::ReplicaServiceAttendResponse::kBeginInPlace:
      command.kind = EngineCommand::Kind::kBeginInPlace;
      command.version = wire::FromProto(message.begin_in_place().version());
      return command;
    case v1::ReplicaServiceAttendResponse::kReleaseWeights:
      command.kind = EngineCommand::Kind::kReleaseWeights;
      command.keep_live = message.release_weights().keep_live();
      return command;
    case v1::ReplicaServiceAttendResponse::kRestoreWeights:
      command.kind = EngineCommand::Kind::kRestoreWeights;
      return command;
    case v1::ReplicaServiceAttendResponse::kReleaseBlocks:
      command.kind = EngineCommand::Kind::kReleaseBlocks;
      return command;
    case v1::ReplicaServiceAttendResponse::kRestoreBlocks:
      command.kind = EngineCommand::Kind::kRestoreBlocks;
      return command;
    case v1::ReplicaServiceAttendResponse::kChooseShadow:
      command.kind = EngineCommand::Kind::kChooseShadow;
      command.set = message.choose_shadow().set();
      return command;
    default:  // an unknown command cannot be skipped: the other ranks carry it out
      return Damaged();
  }
}

}  // namespace syncopate::rollouterd
