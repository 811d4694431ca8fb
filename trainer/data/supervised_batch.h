#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "trainer/data/data_restore.h"
#include "trainer/data/prompt_queue.h"
#include "trainer/data/prompts.h"
#include "trainer/data/records.h"

namespace syncopate::trainer {

// The batch of the next supervised step: prompts with the data's own answers, gathered as their source gets to them.
// GroupLedger's; sans-IO.
//
// A prompt is read from its source as soon as it is ready, because a source forgets the prompts before the one asked
// for. Prompts that are gathered and not taken are read again after a restart: until the take they are neither consumed
// nor part of a checkpoint.
class SupervisedBatch {
 public:
  // `prompts` must outlive this.
  SupervisedBatch(const PromptSource* prompts, int64_t batch_groups) : prompts_(prompts), batch_groups_(batch_groups) {}

  // Adds what is there until the batch is whole: the prompts of `replay`, a logged step that is repeated, or if that is
  // null those at the head of `queue`. Rows there that are no prompts are consumed, and returned.
  std::vector<LeaseId> Gather(const RestoredData::Replay* replay, PromptQueue* queue);
  // True if the batch can be trained: it is whole, or as large as the remaining data allow.
  bool IsReady(const RestoredData::Replay* replay, const PromptQueue& queue) const;
  bool empty() const { return groups_.empty(); }
  // Empties the batch.
  std::vector<SharedGroup> TakeGroups();

  // INVALID_ARGUMENT (reason ROW_CHANGED): a step cannot be repeated, as its row is no prompt any more.
  const absl::Status& failure() const { return failure_; }

 private:
  size_t Wanted(const RestoredData::Replay* replay) const;

  const PromptSource* const prompts_;
  const int64_t batch_groups_;
  std::vector<SharedGroup> groups_;
  absl::Status failure_;
};

}  // namespace syncopate::trainer
