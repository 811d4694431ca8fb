#pragma once

#include <ATen/ATen.h>

namespace syncopate::loss {

// The inputs of the loss for one micro-batch: A trained tokens of S answers that lie one behind the other, each whole
// and with at least one such token. All tensors are on one device; those of shape [A] have one floating type. No part
// of the loss depends on how answers are dealt to micro-batches and ranks.
struct TokenBatch {
  at::Tensor current;    // [A] n: log-prob under the weights being trained; the loss has its gradient
  at::Tensor behaviour;  // [A] b: log-prob that the rollouter stored; may be -inf
  at::Tensor advantage;  // [A] A
  // [A] o: log-prob under the weights at the start of the step. Undefined: those are the current weights.
  at::Tensor proximal = {};
  // [A] log-prob under the reference policy; needed if LossOptions::needs_reference() and the KL is in the loss.
  at::Tensor reference = {};
  // [A] entropy of the current policy at the token, nats; needed for the entropy bonus, which has its gradient, and
  // measured if it is there.
  at::Tensor entropy = {};
  // [A] probability of the current policy's most likely token; measured if it is there.
  at::Tensor top_probability = {};
  at::Tensor age = {};       // [A] int64: steps since the token's version; undefined: 0
  at::Tensor answer;         // [A] int64: 0 to S-1, ascending
  at::Tensor answer_tokens;  // [S] int64: how many of the A tokens each answer has
  // [S] same floating type: trained tokens of the answer's whole group, wherever they are; for kPromptMean alone.
  at::Tensor group_tokens = {};
};

// The denominators of one update, over all micro-batches and ranks, counted before any rejection. An answer or a group
// without a trained token is not counted.
struct BatchExtent {
  double tokens = 0;
  double answers = 0;
  double groups = 0;
};

}  // namespace syncopate::loss
