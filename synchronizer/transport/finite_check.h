#pragma once

#include "absl/status/status.h"
#include "base/manifest.h"

namespace syncopate::synchronizer {

// OK if every weight in `arena` (manifest.arena_bytes() bytes) is finite; else DATA_LOSS reason NON_FINITE naming the
// first tensor that holds a NaN or an infinity and the element. Reads each byte once.
absl::Status CheckFinite(const Manifest& manifest, const char* arena);

}  // namespace syncopate::synchronizer
