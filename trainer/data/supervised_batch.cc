#include "trainer/data/supervised_batch.h"

#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace syncopate::trainer {

size_t SupervisedBatch::Wanted(const RestoredData::Replay* replay) const {
  return replay != nullptr ? replay->prompts.size() : static_cast<size_t>(batch_groups_);
}

std::vector<LeaseId> SupervisedBatch::Gather(const RestoredData::Replay* replay, PromptQueue* queue) {
  std::vector<LeaseId> unusable;
  while (failure_.ok() && groups_.size() < Wanted(replay)) {
    const std::optional<GroupId> prompt = replay != nullptr ? replay->prompts[groups_.size()].group : queue->Head();
    if (!prompt.has_value()) break;
    const PromptSource::Readiness readiness = prompts_->CheckReadiness(*prompt);
    if (readiness == PromptSource::Readiness::kComing) break;
    if (readiness == PromptSource::Readiness::kReady) {
      const LeaseId id = replay != nullptr ? replay->prompts[groups_.size()] : queue->Lease();
      groups_.push_back(std::make_shared<const TrajectoryGroup>(SupervisedGroup(id, prompts_->At(*prompt))));
    } else if (replay != nullptr) {
      // Passing over it would make another step of the same number.
      failure_ = Error(absl::StatusCode::kInvalidArgument, "ROW_CHANGED",
                       absl::StrCat("step ", replay->step, " was trained on group ", prompt->ToString(),
                                    ", whose row is no prompt any more: go on under the configuration before"));
    } else {
      unusable.push_back(queue->Lease());
      queue->Consume(unusable.back().group);
    }
  }
  return unusable;
}

bool SupervisedBatch::IsReady(const RestoredData::Replay* replay, const PromptQueue& queue) const {
  if (groups_.size() == Wanted(replay)) return true;
  return replay == nullptr && !groups_.empty() && !queue.Head().has_value();
}

std::vector<SharedGroup> SupervisedBatch::TakeGroups() { return std::exchange(groups_, {}); }

}  // namespace syncopate::trainer
