#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/manifest.h"

namespace syncopate::bench {

// Models of which only the shapes matter: those of synchronizer/plan/model_shapes.h, and "tiny" (about 1 MB) for tests.
std::vector<std::string> BenchModelNames();
// The manifest of their weights. NOT_FOUND reason UNKNOWN_MODEL listing the names.
absl::StatusOr<Manifest> BenchManifest(const std::string& model);
// Elements of one attention head.
absl::StatusOr<int64_t> BenchHeadDim(const std::string& model);

}  // namespace syncopate::bench
