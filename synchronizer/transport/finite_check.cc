#include "synchronizer/transport/finite_check.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "base/finite.h"
#include "base/reasons.h"
#include "base/status.h"

namespace syncopate::synchronizer {

std::optional<int64_t> FindNonFinite(DType dtype, const char* bytes, int64_t count) {
  return dtype == DType::kFloat32 ? syncopate::FindNonFinite(bytes, count, kFloat32Exponent)
                                  : syncopate::FindNonFinite(bytes, count, kBFloat16Exponent);
}

absl::Status CheckFinite(const Manifest& manifest, const char* arena) {
  for (size_t i = 0; i < manifest.tensors().size(); ++i) {
    const TensorSpec& spec = manifest.tensors()[i];
    SYNCOPATE_RETURN_IF_ERROR(
        CheckFinite(TypedRange{manifest.ranges()[i], spec.dtype, spec.name}, manifest.ranges()[i], arena));
  }
  return absl::OkStatus();
}

absl::Status CheckFinite(const TypedRange& numbers, ByteRange within, const char* arena) {
  const int64_t width = DTypeBytes(numbers.dtype);
  const int64_t skipped = std::max<int64_t>(0, within.begin - numbers.range.begin + width - 1) / width;
  const int64_t begin = numbers.range.begin + skipped * width;
  const int64_t count = std::max<int64_t>(0, std::min(within.end, numbers.range.end) - begin) / width;
  std::optional<int64_t> bad = FindNonFinite(numbers.dtype, arena + begin, count);
  if (!bad.has_value()) return absl::OkStatus();
  return Error(absl::StatusCode::kDataLoss, reason::kNonFinite,
               absl::StrFormat("element %d of %s is not finite; these weights must not be served", skipped + *bad,
                               numbers.tensor),
               {{"tensor", numbers.tensor}});
}

}  // namespace syncopate::synchronizer
