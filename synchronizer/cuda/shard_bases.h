#pragma once

#include <cstdint>
#include <vector>

#include "base/manifest.h"
#include "synchronizer/plan/layout.h"

namespace syncopate::synchronizer {

// Where on a device a source rank's shard lies, by tensor of the manifest: bases[t] + PackOp::source_offset is the
// address of an operation's first element. Addresses, not pointers: some lie before any allocation.
using ShardBases = std::vector<uint64_t>;

// One buffer laid out as the source layout says.
ShardBases FlatShard(const Manifest& manifest, const void* buffer);

// Each tensor's part in an allocation of its own, as an optimiser holds it: tensors[t] is the address of the rank's
// piece of tensor t in `source`, dense, as long as in the layout; nullptr where the rank has none. At most one piece a
// tensor.
ShardBases SplitShard(const Layout& source, int32_t rank, const std::vector<const void*>& tensors);

}  // namespace syncopate::synchronizer
