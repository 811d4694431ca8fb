#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "base/manifest.h"
#include "model/presets.h"

namespace syncopate::bench {

// The manifest of a preset's weights (model/presets.h) in bf16. NOT_FOUND reason UNKNOWN_MODEL that lists the names.
absl::StatusOr<Manifest> BenchManifest(const std::string& model);

}  // namespace syncopate::bench
