#include "synchronizer/members/trainer_group.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"
#include "base/reasons.h"
#include "base/status.h"

namespace syncopate::synchronizer {
namespace {

absl::Status Fenced(int64_t held, int64_t newest) {
  return Error(absl::StatusCode::kFailedPrecondition, reason::kFenced,
               absl::StrFormat("this trainer works in epoch %d, a newer one holds epoch %d; exit, and resume from the "
                               "newest checkpoint if the newer one was a mistake",
                               held, newest),
               {{"epoch", absl::StrFormat("%d", newest)}});
}

absl::Status FencedStart(const std::string& why) {
  return Error(absl::StatusCode::kFailedPrecondition, reason::kFenced, why + "; exit, and start all ranks again");
}

}  // namespace

absl::StatusOr<TrainerGroup::Admission> TrainerGroup::Admit(const MemberId& id, const std::string& start,
                                                            int64_t held_epoch, int64_t checkpoint_epoch) {
  auto place = places_.find(id.rank);
  // The place of a rank that left stays taken (see Remove): a starting process does not have that rank's weights.
  bool free = place == places_.end();
  bool own = !free && place->second.id == id;
  bool starts = held_epoch == 0;
  if (!starts && held_epoch < epoch_) return Fenced(held_epoch, epoch_);
  // The synchronizer has lost its state, so the trainer's epoch is adopted.
  if (!starts && held_epoch > epoch_) return Begin(id, start, held_epoch);
  if (!starts && !free && !own) return Fenced(held_epoch, epoch_);
  if (starts && !own) {
    if (absl::c_linear_search(fenced_, start)) return FencedStart("another start of the trainer came after this one");
    if (start == start_ && !free) return FencedStart("another process of this start has had this rank");
    // Otherwise this is another start. Its epoch is above every epoch ever seen, so it fences the earlier starts.
    bool joins = start == start_ && world_ == id.world && checkpoint_epoch <= epoch_;
    if (!joins) return Begin(id, start, std::max(epoch_, checkpoint_epoch) + 1);
  }
  start_ = start;
  places_[id.rank] = {id, true};
  world_ = id.world;
  return Admission{epoch_, false, {}};
}

void TrainerGroup::Remove(const MemberId& id) {
  auto place = places_.find(id.rank);
  if (place != places_.end() && place->second.id == id) place->second.present = false;
}

bool TrainerGroup::Contains(const MemberId& id) const {
  auto place = places_.find(id.rank);
  return place != places_.end() && place->second.present && place->second.id == id;
}

std::vector<MemberId> TrainerGroup::CompleteRanks() const {
  std::vector<MemberId> ranks;
  for (const auto& [rank, place] : places_) {
    if (place.present) ranks.push_back(place.id);
  }
  if (static_cast<int32_t>(ranks.size()) != world_) ranks.clear();
  return ranks;
}

TrainerGroup::Admission TrainerGroup::Begin(const MemberId& id, const std::string& start, int64_t epoch) {
  Admission admission{epoch, true, {}};
  for (const auto& [rank, place] : places_) {
    if (place.id != id) admission.fenced.push_back(place.id);
  }
  // Late ranks of the previous start must not begin a third group.
  if (!start_.empty() && start_ != start) fenced_.push_back(start_);
  if (fenced_.size() > kFencedKept) fenced_.pop_front();
  start_ = start;
  places_.clear();
  places_[id.rank] = {id, true};
  world_ = id.world;
  epoch_ = epoch;
  return admission;
}

absl::Status CheckSameModel(const Manifest& ours, const Manifest& theirs) {
  absl::Status same = ours.CheckSame(theirs);
  // A separate reason because the remedy differs: change a configuration key, not the model.
  bool only_dtypes = !same.ok() && ours.bucket_bytes() == theirs.bucket_bytes() &&
                     absl::c_equal(ours.tensors(), theirs.tensors(), [](const TensorSpec& a, const TensorSpec& b) {
                       return a.name == b.name && a.shape == b.shape;
                     });
  if (!only_dtypes) return same;
  return Error(same.code(), reason::kDtypeMismatch, same.message(), ErrorDetails(same));
}

absl::Status CheckSubset(const Subset& subset, const Manifest& model) {
  int32_t at = 0;
  // Without adapters no base weights stay, so base_digest must be 0.
  bool good = subset.adapters.empty() == (subset.base_digest == 0);
  for (const TensorRange& range : subset.adapters) {
    good = good && range.begin >= at && range.begin < range.end;
    at = range.end;
  }
  if (good && at <= static_cast<int32_t>(model.tensors().size())) return absl::OkStatus();
  return Error(absl::StatusCode::kInvalidArgument, "BAD_SUBSET",
               absl::StrFormat("adapters must be ascending ranges of the model's %d tensors, with a digest that names "
                               "the base weights",
                               model.tensors().size()));
}

}  // namespace syncopate::synchronizer
