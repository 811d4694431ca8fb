// What GroupLedger says about its wait.
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "trainer/data/group_ledger.h"

namespace syncopate::trainer {
namespace {

// Heartbeats, which say how leases come along, are a second apart.
constexpr absl::Duration kNoteworthyStall = absl::Seconds(3);

}  // namespace

Explanation GroupLedger::Explain(absl::Time now) const {
  Explanation explanation{.mean_group_seconds = flow_.mean_group_seconds(),
                          .longest_group_seconds = flow_.longest_group_seconds(),
                          .step_interval_seconds = flow_.step_interval_seconds(),
                          .suggested_target_staleness = flow_.suggested_target_staleness(),
                          .suggested_max_staleness = flow_.suggested_max_staleness()};
  if (in_step_) {
    explanation.waiting_for = "nothing";
    const PolicyVersion next{version_.epoch, version_.step + 1};
    explanation.detail = absl::StrCat("the step that makes ", next.ToString(), " runs");
    return explanation;
  }
  if (HasBatch()) {
    explanation.waiting_for = "nothing";
    explanation.detail =
        replays_.empty() ? "a batch is ready" : absl::StrCat(replays_.size(), " logged steps are repeated");
    return explanation;
  }
  explanation.since_seconds = absl::ToDoubleSeconds(now - waiting_since_);
  ExplainWait(now, &explanation);
  return explanation;
}

void GroupLedger::ExplainWait(absl::Time now, Explanation* explanation) const {
  if (DataEnded()) {
    explanation->waiting_for = "end";
    explanation->detail = "all prompts are done with";
    explanation->unblocked_by = "nothing: raise data.max_groups to train longer";
    return;
  }
  if (std::optional<GroupId> blocker = gate_.Blocker()) {
    const RolloutSession* session = sessions_.Find(groups_.at(*blocker).session);
    explanation->waiting_for = "deadline";
    explanation->rollouter = session == nullptr ? "" : session->member.replica_id;
    explanation->detail =
        absl::StrFormat("%d groups are ready, but group %s must be trained by step %d (now %d)", queued_groups(),
                        blocker->ToString(), gate_.DeadlineOf(*blocker), gate_.step());
    explanation->unblocked_by = absl::StrCat("group ", blocker->ToString(), " from ", explanation->rollouter);
    ExplainLease(groups_.at(*blocker), now, explanation);
    return;
  }
  int64_t ready = 0, quarantined = 0, stalled = 0;
  for (const auto& [id, session] : sessions_.all()) {
    quarantined += session.IsQuarantined(now) ? 1 : 0;
    stalled += session.IsStalled() ? 1 : 0;
    ready += MayReceive(session) && !session.IsHeldBack(now) ? 1 : 0;
  }
  if (ready == 0 && leased_groups() == 0) {
    explanation->waiting_for = "rollouters";
    explanation->detail =
        absl::StrFormat("%d rollouters are connected, none of them serves a version that counts at %s",
                        sessions_.all().size(), version_.ToString());
    explanation->unblocked_by = "a rollouter that takes the current weights";
    if (quarantined + stalled == 0) return;
    absl::StrAppendFormat(&explanation->detail, " and makes valid answers; %d are quarantined, %d have stalled",
                          quarantined, stalled);
    explanation->unblocked_by = "a rollouter that takes the current weights and makes valid answers";
    return;
  }
  const std::optional<GroupId> head = queue_.Head();
  if (leased_groups() == 0 && head.has_value() && prompts_->Look(*head) == PromptSource::Readiness::kComing) {
    const absl::Status failure = prompts_->failure();
    explanation->waiting_for = "prompts";
    explanation->detail = failure.ok() ? absl::StrCat("the row of group ", head->ToString(), " is being read")
                                       : std::string(failure.message());
    explanation->unblocked_by = "the disk that holds data.files";
    return;
  }
  explanation->waiting_for = "groups";
  explanation->detail = absl::StrFormat("%d of %d groups are ready, %d are being made", queued_groups(),
                                        options_.gate.batch_groups, leased_groups());
  explanation->unblocked_by = absl::StrCat(options_.gate.batch_groups - queued_groups(), " more groups");
  const Group* oldest = nullptr;
  for (const auto& [id, group] : groups_) {
    if (group.stage != Stage::kLeased) continue;
    if (oldest == nullptr || group.times.issued < oldest->times.issued) oldest = &group;
  }
  if (oldest == nullptr) return;
  const RolloutSession* session = sessions_.Find(oldest->session);
  explanation->rollouter = session == nullptr ? "" : session->member.replica_id;
  absl::StrAppendFormat(&explanation->detail, ", the oldest (%s) by %s for %.1f s", oldest->lease.id.group.ToString(),
                        explanation->rollouter, absl::ToDoubleSeconds(now - oldest->times.issued));
  ExplainLease(*oldest, now, explanation);
}

// A lease that stands still ends the wait by itself.
void GroupLedger::ExplainLease(const Group& group, absl::Time now, Explanation* explanation) const {
  const absl::Duration still = now - group.times.progressed;
  if (group.stage != Stage::kLeased || still < kNoteworthyStall) return;
  absl::StrAppendFormat(&explanation->detail, ", no further for %.1f s", absl::ToDoubleSeconds(still));
  absl::StrAppendFormat(&explanation->unblocked_by, "; if it comes no further, it is leased to another in %.1f s",
                        absl::ToDoubleSeconds(std::max(options_.lease_limits.stall - still, absl::ZeroDuration())));
}

}  // namespace syncopate::trainer
