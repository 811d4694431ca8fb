#include "rollouter/engine/rank_sums.h"

namespace syncopate::rollouter {

at::Tensor RankSums::Sum(const at::Tensor& partial) {
  // The sum is in float32, because a sum in bfloat16 would round after each rank.
  const at::Tensor sum = partial.to(at::kFloat).contiguous();
  status_.Update(ranks_->AllReduce(sum.data_ptr(), sum.numel(), Element::kFloat32, Reduction::kSum));
  return sum.to(partial.scalar_type());
}

absl::Status RankSums::Share(std::vector<int32_t>& tokens) {
  const int64_t count = static_cast<int64_t>(tokens.size());
  const at::Tensor host = at::from_blob(tokens.data(), {count}, at::kInt);
  const at::Tensor shared = host.to(device_);  // on the CPU this is the same memory
  status_.Update(ranks_->Broadcast(shared.data_ptr(), count * int64_t{sizeof(int32_t)}, /*root=*/0));
  // Errors of queued collectives appear only in Finish().
  status_.Update(ranks_->Finish());
  if (status_.ok() && !shared.is_same(host)) host.copy_(shared);
  return status_;
}

}  // namespace syncopate::rollouter
