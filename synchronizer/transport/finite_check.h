#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "base/manifest.h"
#include "synchronizer/transport/weight_target.h"

namespace syncopate::synchronizer {

// Index of the first NaN or infinity among `count` numbers at `bytes`; nullopt if there is none. Reads each byte once.
std::optional<int64_t> FindNonFinite(DType dtype, const char* bytes, int64_t count);

// OK if every weight in `arena` (manifest.arena_bytes() bytes) is finite; else DATA_LOSS reason NON_FINITE naming the
// first tensor with a NaN or an infinity, and its element.
absl::Status CheckFinite(const Manifest& manifest, const char* arena);

// CheckFinite for those of `numbers` that are completely inside `within`; elements count from
// numbers.begin.
absl::Status CheckFinite(const TypedRange& numbers, ByteRange within, const char* arena);

}  // namespace syncopate::synchronizer
