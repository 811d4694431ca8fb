#pragma once

#include <cstdint>
#include <vector>

#include "base/manifest.h"
#include "synchronizer/cuda/kernel_work.h"
#include "synchronizer/plan/pack.h"
#include "synchronizer/transport/weight_target.h"

// The work of the kernels, cut out of a plan on the host. Pure; made once a plan.
namespace syncopate::synchronizer {

NumberKind NumberKindOf(DType dtype);

// How one source rank packs its shard into its send arena and digests it, in one pass over both wherever that can be:
// where an operation's elements lie densely in the arena, its vectors are loaded, cast, stored, digested and checked by
// one thread each. What is left is done apart: elements at the edges of operations, operations with gaps between their
// rows, and the digest of words that such elements or padding lie in.
struct StageProgram {
  std::vector<PackItem> vectors;
  std::vector<ElementItem> elements;  // before `words`
  std::vector<CheckItem> words;       // after both; digest only
};

// `buckets`: disjoint, by begin; digest i is that of buckets[i]. Every operation lies within them.
StageProgram MakeStageProgram(const std::vector<PackOp>& ops, const std::vector<ByteRange>& buckets);

// How a receiver digests its shadow's buckets and looks for numbers that are not finite, in one pass except for buckets
// that do not start on a word or where numbers of two kinds share one. Items of either list are disjoint, by begin.
struct CheckProgram {
  std::vector<CheckItem> digests;  // these check numbers too, except kShifted ones
  std::vector<CheckItem> numbers;  // kNumbers only: what the first list does not check
};

// Digest i is that of contents.buckets[i].
CheckProgram MakeCheckProgram(const ShadowContents& contents);

}  // namespace syncopate::synchronizer
