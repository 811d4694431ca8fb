#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "base/manifest.h"
#include "synchronizer/transport/weight_target.h"

namespace syncopate::synchronizer {

// Index of the first of `count` numbers at `bytes` that is a NaN or an infinity. Reads each byte once.
std::optional<int64_t> FindNonFinite(DType dtype, const char* bytes, int64_t count);

// OK if every weight in `arena` (manifest.arena_bytes() bytes) is finite; else DATA_LOSS reason NON_FINITE naming the
// first tensor that holds a NaN or an infinity and the element.
absl::Status CheckFinite(const Manifest& manifest, const char* arena);

// The same for those of `numbers` that lie wholly in `within`; elements are counted from the begin of `numbers`.
absl::Status CheckFinite(const TypedRange& numbers, ByteRange within, const char* arena);

}  // namespace syncopate::synchronizer
