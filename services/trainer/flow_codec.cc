#include "services/trainer/flow_codec.h"

#include <cmath>
#include <deque>
#include <utility>

#include "base/status.h"
#include "services/wire/codec.h"
#include "syncopate/v1/records.pb.h"

namespace syncopate::trainerd {
namespace {

v1::FlowSums::Rollouter RollouterMessage(const trainer::RolloutRoster::Entry& entry) {
  v1::FlowSums::Rollouter message;
  *message.mutable_member() = wire::ToProto(entry.member);
  *message.mutable_serving() = wire::ToProto(entry.serving);
  message.set_generated_tokens(entry.work.generated_tokens);
  message.set_groups_submitted(entry.work.groups_submitted);
  message.set_busy_seconds(entry.work.busy_seconds);
  message.set_idle_seconds(entry.work.idle_seconds);
  message.set_judge_tokens(entry.work.judge_tokens);
  return message;
}

trainer::RolloutRoster::Work GetWork(const v1::FlowSums::Rollouter& message) {
  return {.generated_tokens = message.generated_tokens(),
          .groups_submitted = message.groups_submitted(),
          .busy_seconds = message.busy_seconds(),
          .idle_seconds = message.idle_seconds(),
          .judge_tokens = message.judge_tokens()};
}

absl::Status BadFlow(const char* what) {
  return Error(absl::StatusCode::kDataLoss, "BAD_FLOW",
               absl::StrCat("the flow sums of the run's earlier incarnations ", what));
}

}  // namespace

std::string EncodeFlowSums(const trainer::FlowSums& sums) {
  v1::FlowSums message;
  message.set_wall_seconds(sums.wall_seconds);
  message.set_step_seconds(sums.figures.step_seconds);
  message.set_wait_seconds(sums.figures.wait_seconds);
  // Rewards have presence on the wire, because 0 is a possible mean reward.
  if (sums.figures.best_reward.has_value()) message.set_best_reward(*sums.figures.best_reward);
  if (sums.figures.last_reward.has_value()) message.set_last_reward(*sums.figures.last_reward);
  if (sums.figures.best_exact.has_value()) message.set_best_exact(*sums.figures.best_exact);
  if (sums.figures.last_exact.has_value()) message.set_last_exact(*sums.figures.last_exact);
  if (const auto& best = sums.figures.best_held_out_loss) message.set_best_held_out_loss(*best);
  if (const auto& last = sums.figures.last_held_out_loss) message.set_last_held_out_loss(*last);
  message.set_saved_checkpoints(sums.figures.saved_checkpoints);
  message.set_failed_checkpoints(sums.figures.failed_checkpoints);
  message.set_reissued_groups(sums.reissued);
  message.set_failed_groups(sums.failed_attempts);
  message.set_superseded_attempts(sums.superseded);
  message.set_evaluations_made(sums.figures.evaluations_made);
  message.set_evaluations_lost(sums.figures.evaluations_lost);
  message.set_duplicate_groups(sums.duplicate);
  message.set_expired_groups(sums.expired);
  message.mutable_invalid()->insert(sums.invalid.begin(), sums.invalid.end());
  for (const trainer::RolloutRoster::Entry& entry : sums.roster.entries())
    *message.add_rollouters() = RollouterMessage(entry);
  *message.mutable_earlier() = RollouterMessage({.work = sums.roster.earlier()});
  return message.SerializeAsString();
}

absl::StatusOr<trainer::FlowSums> DecodeFlowSums(absl::string_view bytes) {
  v1::FlowSums message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return BadFlow("cannot be parsed");
  const double seconds[] = {message.wall_seconds(), message.step_seconds(), message.wait_seconds()};
  // The sums go on growing: one negative or NaN value would spoil all later figures of the run.
  for (const double one : seconds) {
    if (!std::isfinite(one) || one < 0) return BadFlow("took a time that cannot be");
  }
  trainer::FlowSums sums{.wall_seconds = message.wall_seconds(),
                         .figures = {.step_seconds = message.step_seconds(),
                                     .wait_seconds = message.wait_seconds(),
                                     .saved_checkpoints = message.saved_checkpoints(),
                                     .failed_checkpoints = message.failed_checkpoints()},
                         .reissued = message.reissued_groups(),
                         .failed_attempts = message.failed_groups(),
                         .superseded = message.superseded_attempts(),
                         .duplicate = message.duplicate_groups(),
                         .expired = message.expired_groups(),
                         .invalid = {message.invalid().begin(), message.invalid().end()}};
  sums.figures.evaluations_made = message.evaluations_made();
  sums.figures.evaluations_lost = message.evaluations_lost();
  if (message.has_best_reward()) sums.figures.best_reward = message.best_reward();
  if (message.has_last_reward()) sums.figures.last_reward = message.last_reward();
  if (message.has_best_exact()) sums.figures.best_exact = message.best_exact();
  if (message.has_last_exact()) sums.figures.last_exact = message.last_exact();
  if (message.has_best_held_out_loss()) sums.figures.best_held_out_loss = message.best_held_out_loss();
  if (message.has_last_held_out_loss()) sums.figures.last_held_out_loss = message.last_held_out_loss();
  std::deque<trainer::RolloutRoster::Entry> entries;
  for (const v1::FlowSums::Rollouter& one : message.rollouters()) {
    absl::StatusOr<MemberId> member = wire::FromProto(one.member());
    if (!member.ok()) return BadFlow("names a rollouter that cannot be");
    entries.push_back({.member = *std::move(member), .serving = wire::FromProto(one.serving()), .work = GetWork(one)});
  }
  sums.roster = trainer::RolloutRoster::Restore(std::move(entries), GetWork(message.earlier()));
  return sums;
}

}  // namespace syncopate::trainerd
