#include "trainer/data/disk_trouble.h"

#include "absl/strings/str_cat.h"

namespace syncopate::trainer {
namespace {

// The disk is tried again after this rest: short against a step, long against one failed write.
constexpr absl::Duration kDiskRest = absl::Seconds(1);

}  // namespace

void DiskTrouble::Record(const absl::Status& written, absl::Time now) {
  if (written.ok()) {
    trouble_.reset();
  } else if (!absl::IsCancelled(written)) {
    // `since` keeps the first refusal, so that the status shows how long the trouble has lasted.
    trouble_ = Trouble{written, trouble_.has_value() ? trouble_->since : now, now};
  }
}

bool DiskTrouble::IsFresh(absl::Time now) const { return trouble_.has_value() && now - trouble_->last < kDiskRest; }

void DiskTrouble::Explain(absl::Time now, Explanation* explanation) const {
  explanation->waiting_for = "disk";
  explanation->since_seconds = absl::ToDoubleSeconds(now - trouble_->since);
  explanation->detail = absl::StrCat("answers and batches cannot be written down: ", trouble_->why.message());
  explanation->rollouter.clear();
  explanation->unblocked_by = "room on that disk; it is tried again every second";
}

}  // namespace syncopate::trainer
