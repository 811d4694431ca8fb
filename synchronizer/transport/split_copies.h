#pragma once

#include <cstdint>
#include <vector>

#include "base/manifest.h"
#include "synchronizer/messages.h"
#include "synchronizer/plan/layout.h"
#include "synchronizer/plan/payload.h"
#include "synchronizer/plan/sync_plan.h"

namespace syncopate::synchronizer {

// What of a plan's copies to one rank is sent to it.
struct SplitCopies {
  std::vector<Copy> sent;
  std::vector<ByteRange> kept;  // bytes of the shadow that are not sent: base weights, and the padding between them
  PayloadBytes bytes;           // of `sent`; padding counts with its neighbours
};

// Cuts `copies` (SyncPlan::CopiesTo(rank)) where adapters begin and end in the rank's arena. With `base` everything is
// sent, without it the adapters alone. Without adapters everything is base. A pure function.
SplitCopies Split(const Manifest& manifest, const Layout& destination, int32_t rank, const std::vector<Copy>& copies,
                  const std::vector<TensorRange>& adapters, bool base);

}  // namespace syncopate::synchronizer
