#pragma once

#include <cstdint>
#include <vector>

#include "base/manifest.h"
#include "synchronizer/cuda/kernel_work.h"
#include "synchronizer/plan/pack.h"
#include "synchronizer/transport/weight_target.h"

// Cuts a plan into work items for the kernels, on the host. Pure; called once for each plan.
namespace syncopate::synchronizer {

NumberKind ToNumberKind(DType dtype);

// How one source rank packs its shard into its send arena and digests it, in one pass where possible: if an operation's
// elements are dense in the arena, one thread loads, casts, stores, digests and checks each vector. Other bytes take
// separate passes: elements at the edges of operations, operations with gaps between their rows, and the digest of
// words that contain such elements or padding.
struct StageProgram {
  std::vector<PackItem> vectors;
  std::vector<ElementItem> elements;  // run before `words`
  std::vector<CheckItem> words;       // run after both; digest only
};

// `buckets`: disjoint, by begin; digest i is that of buckets[i]. Every operation lies inside the buckets.
StageProgram MakeStageProgram(const std::vector<PackOp>& ops, const std::vector<ByteRange>& buckets);

// How a receiver digests its shadow's buckets and checks for numbers that are not finite. One pass, except for buckets
// that do not start on a word or in which a word contains two kinds of numbers. Items of either list are disjoint, by
// begin.
struct CheckProgram {
  std::vector<CheckItem> digests;  // these check numbers too, except kShifted ones
  std::vector<CheckItem> numbers;  // kNumbers only: bytes that the first list does not check
};

// Digest i is that of contents.buckets[i].
CheckProgram MakeCheckProgram(const ShadowContents& contents);

}  // namespace syncopate::synchronizer
