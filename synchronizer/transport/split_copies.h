#pragma once

#include <cstdint>
#include <vector>

#include "base/manifest.h"
#include "synchronizer/messages.h"
#include "synchronizer/plan/layout.h"
#include "synchronizer/plan/payload.h"
#include "synchronizer/plan/sync_plan.h"

namespace syncopate::synchronizer {

// The part of a plan's copies to one rank that is sent to it.
struct SplitCopies {
  std::vector<Copy> sent;
  std::vector<ByteRange> kept;  // bytes of the shadow that are not sent: base weights and the padding between them
  PayloadBytes bytes;           // the size of `sent`; padding counts with neighbouring weights
};

// Cuts `copies` (SyncPlan::CopiesTo(rank)) where adapters begin and end in the rank's arena. With `base` all bytes are
// sent, without it only the adapters. If there are no adapters, all weights are base weights. A pure function.
SplitCopies Split(const Manifest& manifest, const Layout& destination, int32_t rank, const std::vector<Copy>& copies,
                  const std::vector<TensorRange>& adapters, bool base);

}  // namespace syncopate::synchronizer
