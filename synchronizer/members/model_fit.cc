#include "synchronizer/members/model_fit.h"

#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"
#include "base/reasons.h"
#include "base/status.h"

namespace syncopate::synchronizer {

absl::Status CheckSameModel(const Manifest& ours, const Manifest& theirs) {
  absl::Status same = ours.CheckSame(theirs);
  bool only_dtypes = !same.ok() && ours.bucket_bytes() == theirs.bucket_bytes() &&
                     absl::c_equal(ours.tensors(), theirs.tensors(), [](const TensorSpec& a, const TensorSpec& b) {
                       return a.name == b.name && a.shape == b.shape;
                     });
  if (!only_dtypes) return same;
  return Error(same.code(), reason::kDtypeMismatch, same.message(), ErrorDetails(same));
}

absl::Status CheckSubset(const Subset& subset, const Manifest& model) {
  int32_t at = 0;
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
