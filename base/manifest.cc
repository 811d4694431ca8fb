#include "base/manifest.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/digest.h"
#include "base/reasons.h"

namespace syncopate {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 50;
// A peer may name any bucket size, which decides the length of a list: this bounds the list to 64 MiB, enough for 16
// TiB in buckets of 4 MiB.
constexpr int64_t kMaxBuckets = 1 << 22;
// Adapters begin at a multiple of the bucket and of kMappingBytes. A bucket that has little in common with the latter
// would leave a gap of terabytes.
constexpr int64_t kMaxAdapterStep = 1 << 30;

absl::Status BadManifest(const std::string& message) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_MANIFEST", message);
}

std::string Describe(const TensorSpec& spec) {
  return absl::StrFormat("%s %s[%s] unit %d split %d head %d%s%s%s spare %d", spec.name, DTypeName(spec.dtype),
                         absl::StrJoin(spec.shape, ","), spec.unit, static_cast<int>(spec.split), spec.head,
                         spec.joint.empty() ? "" : " joint ", spec.joint, spec.adapter ? " adapter" : "",
                         spec.spare_rows);
}

absl::Status CheckSpec(const TensorSpec& spec) {
  if (spec.name.empty()) return BadManifest("a tensor has no name");
  if (spec.unit < 0) return BadManifest(Describe(spec) + " is of no unit");
  if (spec.head < 0) return BadManifest(Describe(spec) + " has heads of less than nothing");
  if (spec.spare_rows < 0 || (spec.spare_rows > 0 && (spec.shape.empty() || spec.shape[0] == 0))) {
    return BadManifest(Describe(spec) + " has spare rows of less than nothing");
  }
  int64_t elements = 1;
  for (int64_t extent : spec.shape) {
    if (extent < 0) return BadManifest(Describe(spec) + " has a negative extent");
    // Divides, because the product could overflow.
    if (extent > 0 && elements > kMaxBytes / extent) return BadManifest(Describe(spec) + " is too large");
    elements *= extent;
  }
  return absl::OkStatus();
}

}  // namespace

int64_t DTypeBytes(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

std::string DTypeName(DType dtype) { return dtype == DType::kFloat32 ? "float32" : "bfloat16"; }

int64_t TensorSpec::NumElements() const {
  int64_t elements = 1;
  for (int64_t extent : shape) elements *= extent;
  return elements;
}

int64_t TensorSpec::SpareBytes() const { return spare_rows == 0 ? 0 : NumBytes() / shape[0] * spare_rows; }

int64_t Manifest::AlignAdapters(int64_t base_end, int64_t bucket_bytes) {
  const int64_t step = std::lcm(bucket_bytes, kMappingBytes);
  return (base_end + step - 1) / step * step;
}

absl::StatusOr<Manifest> Manifest::Create(std::vector<TensorSpec> tensors, int64_t bucket_bytes) {
  if (bucket_bytes <= 0 || bucket_bytes % kAlignment != 0) {
    return BadManifest(absl::StrFormat("bucket size %d is not a positive multiple of %d", bucket_bytes, kAlignment));
  }
  Manifest manifest;
  manifest.bucket_bytes_ = bucket_bytes;
  std::set<std::string> names;
  std::string identity = absl::StrFormat("bucket %d;", bucket_bytes);
  int64_t offset = 0;
  int32_t unit = 0;
  bool adapters = false;
  for (const TensorSpec& spec : tensors) {
    SYNCOPATE_RETURN_IF_ERROR(CheckSpec(spec));
    if (!names.insert(spec.name).second) return BadManifest("two tensors are named " + spec.name);
    if (spec.unit < unit) return BadManifest(Describe(spec) + " comes after a tensor of a later unit");
    unit = spec.unit;
    if (adapters && !spec.adapter) return BadManifest(Describe(spec) + " of the base comes after an adapter");
    if (spec.adapter && !std::exchange(adapters, true)) {
      // Compared first, as the multiple of a larger size could overflow.
      if (bucket_bytes > kMaxAdapterStep || std::lcm(bucket_bytes, kMappingBytes) > kMaxAdapterStep) {
        return BadManifest(absl::StrFormat(
            "with adapters a bucket is a multiple of 2 MiB or a part of it, not %d bytes", bucket_bytes));
      }
      offset = AlignAdapters(offset, bucket_bytes);
      manifest.adapters_begin_ = offset;
    }
    manifest.ranges_.push_back({offset, offset + spec.NumBytes()});
    manifest.weight_bytes_ += spec.NumBytes();
    if (spec.spare_rows > 0 && spec.NumBytes() / spec.shape[0] > kMaxBytes / spec.spare_rows) {
      return BadManifest(Describe(spec) + " has too many spare rows");
    }
    offset = (offset + spec.NumBytes() + spec.SpareBytes() + kAlignment - 1) / kAlignment * kAlignment;
    if (offset > kMaxBytes) return BadManifest("the weights are too large");
    // All fields, in this order: equal fingerprints mean equal byte offsets and equal buckets on both sides.
    identity += Describe(spec) + ";";
  }
  if (offset / bucket_bytes >= kMaxBuckets) {
    return BadManifest(absl::StrFormat("%d bytes of weights are more than %d buckets of %d bytes; take larger ones",
                                       offset, kMaxBuckets, bucket_bytes));
  }
  manifest.arena_bytes_ = offset;
  if (!adapters) manifest.adapters_begin_ = offset;
  for (int64_t begin = 0; begin < offset; begin += bucket_bytes) {
    manifest.buckets_.push_back({begin, std::min(begin + bucket_bytes, offset)});
  }
  manifest.tensors_ = std::move(tensors);
  manifest.fingerprint_ = DigestBytes(identity.data(), static_cast<int64_t>(identity.size()));
  return manifest;
}

bool Manifest::HasOnly(DType dtype) const {
  return std::all_of(tensors_.begin(), tensors_.end(),
                     [dtype](const TensorSpec& tensor) { return tensor.dtype == dtype; });
}

absl::Status Manifest::CheckSame(const Manifest& other) const {
  if (fingerprint_ == other.fingerprint_) return absl::OkStatus();
  std::string difference = absl::StrFormat("bucket sizes %d and %d", bucket_bytes_, other.bucket_bytes_);
  size_t common = std::min(tensors_.size(), other.tensors_.size());
  size_t at = 0;
  while (at < common && tensors_[at] == other.tensors_[at]) ++at;
  if (at < common) {
    difference =
        absl::StrFormat("tensor %d is %s here and %s there", at, Describe(tensors_[at]), Describe(other.tensors_[at]));
  } else if (tensors_.size() != other.tensors_.size()) {
    difference = absl::StrFormat("%d tensors here and %d there", tensors_.size(), other.tensors_.size());
  }
  return Error(absl::StatusCode::kFailedPrecondition, reason::kModelMismatch,
               "the models differ: " + difference + "; give both sides the same model section",
               {{"difference", difference}});
}

}  // namespace syncopate
