#include "ranks/communicator.h"

#include <cstring>

namespace syncopate {

absl::Status Communicator::AllGather(const void* mine, void* all, int64_t bytes) {
  return Perform({.kind = Collective::Kind::kAllGather, .bytes = bytes}, const_cast<void*>(mine), all);
}

absl::Status Communicator::ReduceScatter(void* all, void* mine, int64_t count, Element element) {
  return Perform({.kind = Collective::Kind::kReduceScatter, .bytes = count * ElementBytes(element), .element = element},
                 all, mine);
}

absl::Status Communicator::AllReduce(void* values, int64_t count, Element element, Reduction reduction) {
  return Perform({.kind = Collective::Kind::kAllReduce,
                  .bytes = count * ElementBytes(element),
                  .element = element,
                  .reduction = reduction},
                 values, values);
}

absl::Status Communicator::AllReduceSum(absl::Span<double> values) {
  return AllReduce(values.data(), static_cast<int64_t>(values.size()), Element::kFloat64, Reduction::kSum);
}

absl::Status Communicator::AllReduceMax(absl::Span<double> values) {
  return AllReduce(values.data(), static_cast<int64_t>(values.size()), Element::kFloat64, Reduction::kMax);
}

absl::Status Communicator::Broadcast(void* data, int64_t bytes, int32_t root) {
  SYNCOPATE_CHECK(root >= 0 && root < world());
  return Perform({.kind = Collective::Kind::kBroadcast, .bytes = bytes, .root = root}, data, data);
}

absl::Status Communicator::Barrier() { return Perform({.kind = Collective::Kind::kBarrier}, nullptr, nullptr); }

absl::Status SingleRank::Perform(const Collective& call, void* in, void* out) {
  CopyBytes(out, in, static_cast<size_t>(call.bytes));
  return absl::OkStatus();
}

}  // namespace syncopate
