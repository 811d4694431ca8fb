#include "trainer/data/wait_explanation.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace syncopate::trainer {
namespace {

// Heartbeats, which say how leases come along, are a second apart.
constexpr absl::Duration kNoteworthyStall = absl::Seconds(3);

// A lease that stands still ends the wait by itself.
void AddStall(const WaitView::HeldLease& lease, absl::Duration limit, Explanation* explanation) {
  if (!lease.second.empty()) {
    absl::StrAppend(&explanation->detail, ", asked of ", lease.second, " too");
    absl::StrAppend(&explanation->unblocked_by, " or ", lease.second);
    return;
  }
  if (!lease.under_way || lease.still < kNoteworthyStall) return;
  absl::StrAppendFormat(&explanation->detail, ", no further for %.1f s", absl::ToDoubleSeconds(lease.still));
  absl::StrAppendFormat(&explanation->unblocked_by, "; if it comes no further, it is leased to another in %.1f s",
                        absl::ToDoubleSeconds(std::max(limit - lease.still, absl::ZeroDuration())));
}

void ExplainBlocker(const WaitView& view, Explanation* explanation) {
  const std::string group = view.blocker->lease.group.ToString();
  explanation->waiting_for = "deadline";
  explanation->rollouter = view.blocker->lease.rollouter;
  explanation->detail = absl::StrFormat("%d groups are ready, but group %s must be trained by step %d (now %d)",
                                        view.queued_groups, group, view.blocker->deadline, view.blocker->step);
  if (view.blocker->lease.kept) {
    absl::StrAppend(&explanation->detail, ", whose rollouter was lost");
    explanation->unblocked_by = "a rollouter with room that serves the newest version that has made a token of it";
    return;
  }
  explanation->unblocked_by = absl::StrCat("group ", group, " from ", explanation->rollouter);
  AddStall(view.blocker->lease, view.stall_limit, explanation);
}

void ExplainRollouters(const WaitView& view, Explanation* explanation) {
  explanation->waiting_for = "rollouters";
  explanation->detail = absl::StrFormat(
      "%d rollouters are connected, none of them serves a "
      "version that counts at %s",
      view.rollouters, view.version.ToString());
  explanation->unblocked_by = "a rollouter that takes the current weights";
  if (view.quarantined + view.stalled == 0) return;
  absl::StrAppendFormat(&explanation->detail, " and makes valid answers; %d are quarantined, %d have stalled",
                        view.quarantined, view.stalled);
  explanation->unblocked_by = "a rollouter that takes the current weights and makes valid answers";
}

void ExplainReading(const WaitView& view, Explanation* explanation) {
  explanation->waiting_for = "prompts";
  explanation->detail = !view.coming.has_value() ? "rows are being read"
                        : view.reading.ok()
                            ? absl::StrCat("the row of group ", view.coming->ToString(), " is being read")
                            : std::string(view.reading.message());
  explanation->unblocked_by = "the disk where data.files is stored";
}

void ExplainGroups(const WaitView& view, Explanation* explanation) {
  explanation->waiting_for = "groups";
  explanation->detail = absl::StrFormat("%d of %d groups are ready, %d are being made", view.queued_groups,
                                        view.batch_groups, view.leased_groups);
  explanation->unblocked_by = absl::StrCat(view.batch_groups - view.queued_groups, " more groups");
  if (!view.oldest.has_value()) return;
  explanation->rollouter = view.oldest->rollouter;
  absl::StrAppendFormat(&explanation->detail, ", the oldest (%s) by %s for %.1f s", view.oldest->group.ToString(),
                        explanation->rollouter, absl::ToDoubleSeconds(view.oldest->age));
  AddStall(*view.oldest, view.stall_limit, explanation);
}

}  // namespace

void ExplainWait(const WaitView& view, Explanation* explanation) {
  if (view.data_ended) {
    explanation->waiting_for = "end";
    explanation->detail = "all prompts are done with";
    explanation->unblocked_by = "nothing: raise data.max_groups to train longer";
  } else if (view.blocker.has_value()) {
    ExplainBlocker(view, explanation);
  } else if (view.supervised) {
    ExplainReading(view, explanation);
  } else if (view.ready == 0 && view.leased_groups == 0) {
    ExplainRollouters(view, explanation);
  } else if (view.leased_groups == 0 && view.coming.has_value()) {
    ExplainReading(view, explanation);
  } else {
    ExplainGroups(view, explanation);
  }
}

}  // namespace syncopate::trainer
