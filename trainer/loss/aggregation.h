#pragma once

#include <ATen/ATen.h>

#include "trainer/loss/loss_options.h"
#include "trainer/loss/token_batch.h"

namespace syncopate::loss {

// This micro-batch's share, a scalar, of the loss of the update that `extent` describes: shares of all micro-batches
// and ranks add up to it, and so do their gradients. `losses` [A], with gradient; `aggregation` is not kAuto.
at::Tensor Aggregate(const at::Tensor& losses, const TokenBatch& batch, const BatchExtent& extent,
                     Aggregation aggregation, int64_t max_response_tokens);

}  // namespace syncopate::loss
