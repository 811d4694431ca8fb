#include "synchronizer/cuda/findings.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_format.h"
#include "base/mix64.h"
#include "base/reasons.h"
#include "base/status.h"
#include "cuda/cuda_status.h"
#include "cuda/device.h"
#include "synchronizer/transport/finite_check.h"

namespace syncopate::synchronizer {
namespace {

absl::Status NonFinite(const std::string& where, const std::string& tensor) {
  return Error(absl::StatusCode::kDataLoss, reason::kNonFinite,
               absl::StrFormat("%s is not finite; these weights must not be served", where), {{"tensor", tensor}});
}

}  // namespace

absl::Status ClearFindings(Findings findings, int64_t digests, cudaStream_t stream) {
  const char what[] = "clearing the digests' sums";
  SYNCOPATE_RETURN_IF_ERROR(cuda::CudaStatus(
      cudaMemsetAsync(findings.sums, 0, static_cast<size_t>(digests) * sizeof(uint64_t), stream), what));
  return cuda::CudaStatus(cudaMemsetAsync(findings.first_non_finite, 0xff, sizeof(uint64_t), stream), what);
}

std::vector<uint64_t> FinishDigests(const uint64_t* sums, const std::vector<ByteRange>& buckets) {
  std::vector<uint64_t> digests;
  digests.reserve(buckets.size());
  for (size_t i = 0; i < buckets.size(); ++i) {
    digests.push_back(Mix64(static_cast<uint64_t>(buckets[i].size()) + sums[i]));
  }
  return digests;
}

absl::Status NonFiniteError(const std::vector<TypedRange>& numbers, int64_t begin, const char* arena, int device,
                            const std::string& counted) {
  // The bytes of one item, plus room for a number that is only partly in it.
  const int64_t end = begin + kCheckItemBytes + kVectorBytes;
  cuda::DeviceScope scope(device);
  auto at = std::upper_bound(numbers.begin(), numbers.end(), begin,
                             [](int64_t from, const TypedRange& range) { return from < range.range.end; });
  for (; at != numbers.end() && at->range.begin < end; ++at) {
    const int64_t width = DTypeBytes(at->dtype);
    const int64_t first = std::max<int64_t>(0, begin - at->range.begin) / width;
    const int64_t last = (std::min(end, at->range.end) - at->range.begin) / width;
    std::vector<char> bytes(static_cast<size_t>((last - first) * width));
    SYNCOPATE_RETURN_IF_ERROR(cuda::CudaStatus(
        cudaMemcpy(bytes.data(), arena + at->range.begin + first * width, bytes.size(), cudaMemcpyDeviceToHost),
        "reading weights that are not finite"));
    std::optional<int64_t> found = FindNonFinite(at->dtype, bytes.data(), last - first);
    if (found.has_value()) {
      return NonFinite(absl::StrFormat("element %d of %s%s", first + *found, at->tensor, counted), at->tensor);
    }
  }
  return NonFinite(absl::StrFormat("a number near byte %d", begin), "");
}

}  // namespace syncopate::synchronizer
