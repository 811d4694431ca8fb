#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "base/manifest.h"
#include "synchronizer/plan/layout.h"

namespace syncopate::synchronizer {

// The layout that a word describes, so that members can tell each other theirs:
//   whole[:R]              R ranks (1) that hold everything in the manifest's order
//   buckets:T              the manifest's arena cut into T parts at bucket boundaries
//   flat:T[:fp32|bf16]     the model as one flat parameter in T equal parts
//   layers:T[:fp32|bf16]   a flat parameter for each unit (base/manifest.h), each in T equal parts
//   fsdp2:T[:fp32|bf16]    every tensor cut by rows into T parts
//   replicated:T[:fp32|bf16]
//   tp:P[:fused][:vocab]   tensor parallelism over P ranks (1, 2, 4, 8), with :vocab the whole vocabulary on each; see
//                          tensor_parallel.h
// Without a dtype shards have the manifest's. INVALID_ARGUMENT reason BAD_LAYOUT for anything else, and where the model
// cannot be laid out so.
absl::StatusOr<Layout> BuildLayout(const Manifest& manifest, const std::string& descriptor);

}  // namespace syncopate::synchronizer
