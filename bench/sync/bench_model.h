#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/manifest.h"
#include "model/presets.h"

namespace syncopate::bench {

// The manifest of a preset's weights (model/presets.h) in bf16. NOT_FOUND reason UNKNOWN_MODEL that lists the names.
absl::StatusOr<Manifest> BenchManifest(const std::string& model);

// The shape with which daemons can be configured that is nearest to the preset's: without biases and without scaled
// rotary angles, which a model that is made from the configuration does not have. `layers` of its layers; 0: all.
// Errors of FindPreset; INVALID_ARGUMENT reason BAD_CASE for more layers than there are.
absl::StatusOr<model::ModelConfig> BenchShape(const std::string& model, int32_t layers);
// Bytes of one bucket, smaller for a small model, so that it has many buckets too.
int64_t BenchBucketBytes(const model::ModelConfig& shape);
// The configuration keys of section model, as overrides, that make daemons have this shape.
std::vector<std::string> ShapeWords(const model::ModelConfig& shape);

}  // namespace syncopate::bench
