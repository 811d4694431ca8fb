#pragma once

#include <cstdint>
#include <vector>

#include "base/manifest.h"
#include "synchronizer/plan/layout.h"

namespace syncopate::synchronizer {

// The device addresses of a source rank's shard, by tensor of the manifest: bases[t] + PackOp::source_offset is the
// address of an operation's first element. Integers, not pointers: some are addresses before any allocation.
using ShardBases = std::vector<uint64_t>;

// The bases of one buffer with the source layout.
ShardBases FlatShard(const Manifest& manifest, const void* buffer);

// Each tensor's part in its own allocation, as in an optimiser: tensors[t] is the address of the rank's piece of tensor
// t in `source`, dense, with the layout's length; nullptr if the rank has none. At most one piece for each tensor.
ShardBases SplitShard(const Layout& source, int32_t rank, const std::vector<const void*>& tensors);

}  // namespace syncopate::synchronizer
