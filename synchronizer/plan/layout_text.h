#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "base/manifest.h"
#include "synchronizer/plan/layout.h"

namespace syncopate::synchronizer {

// The layout that a descriptor names. Members send each other descriptors:
//   whole[:R]              R ranks (default 1), each with all tensors in the manifest's order
//   buckets:T              the manifest's arena cut into T parts at bucket boundaries
//   units:T[:fp32|bf16]    each unit (base/manifest.h) in T flat shards of whole blocks: a trainer's own
//   flat:T[:fp32|bf16]     the model as one flat parameter in T equal parts
//   layers:T[:fp32|bf16]   a flat parameter for each unit (base/manifest.h), each in T equal parts
//   fsdp2:T[:fp32|bf16]    every tensor cut by rows into T parts
//   replicated:T[:fp32|bf16]
//   tp:P[:fused][:vocab]   tensor parallelism over P ranks (1, 2, 4, 8), with :vocab the whole vocabulary on each; see
//                          tensor_parallel.h
// Without a dtype, shards have the manifest's. INVALID_ARGUMENT reason BAD_LAYOUT for any other text, and if the model
// cannot have that layout.
absl::StatusOr<Layout> BuildLayout(const Manifest& manifest, const std::string& descriptor);

}  // namespace syncopate::synchronizer
