#include "synchronizer/transport/finite_check.h"

#include <cstdint>

#include "absl/strings/str_format.h"
#include "base/status.h"

namespace syncopate::synchronizer {
namespace {

// A floating-point number is not finite iff all bits of its exponent are set.
constexpr uint32_t kFloat32Exponent = 0x7f800000u;
constexpr uint16_t kBFloat16Exponent = 0x7f80u;

template <typename Word>
bool AllFinite(const Word* words, int64_t count, Word exponent) {
  bool bad = false;  // no early exit, so that the loop is vectorised
  for (int64_t i = 0; i < count; ++i) bad |= (words[i] & exponent) == exponent;
  return !bad;
}

template <typename Word>
int64_t FirstNonFinite(const Word* words, Word exponent) {
  int64_t i = 0;
  while ((words[i] & exponent) != exponent) ++i;
  return i;
}

template <typename Word>
absl::Status CheckTensor(const TensorSpec& spec, const char* bytes, Word exponent) {
  const Word* words = reinterpret_cast<const Word*>(bytes);
  if (AllFinite(words, spec.NumElements(), exponent)) return absl::OkStatus();
  return Error(absl::StatusCode::kDataLoss, "NON_FINITE",
               absl::StrFormat("element %d of %s is not finite; these weights must not be served",
                               FirstNonFinite(words, exponent), spec.name),
               {{"tensor", spec.name}});
}

}  // namespace

absl::Status CheckFinite(const Manifest& manifest, const char* arena) {
  for (size_t i = 0; i < manifest.tensors().size(); ++i) {
    const TensorSpec& spec = manifest.tensors()[i];
    const char* bytes = arena + manifest.ranges()[i].begin;
    SYNCOPATE_RETURN_IF_ERROR(spec.dtype == DType::kFloat32 ? CheckTensor<uint32_t>(spec, bytes, kFloat32Exponent)
                                                            : CheckTensor<uint16_t>(spec, bytes, kBFloat16Exponent));
  }
  return absl::OkStatus();
}

}  // namespace syncopate::synchronizer
