#pragma once

#include <ATen/ATen.h>

#include "trainer/loss/token_batch.h"

// Figures of whole answers. In float64, without gradients, in a fixed order of summation (no atomics on a GPU), and
// without waiting for the device.
namespace syncopate::loss {

at::Tensor AnswerSums(const at::Tensor& tokens, const TokenBatch& batch);   // [A] -> [S] float64
at::Tensor AnswerMeans(const at::Tensor& tokens, const TokenBatch& batch);  // [A] -> [S] float64
at::Tensor AnswerMins(const at::Tensor& tokens, const TokenBatch& batch);   // [A] -> [S] float64
at::Tensor AnswerMaxs(const at::Tensor& tokens, const TokenBatch& batch);   // [A] -> [S] float64
// To each token the figure of its answer: [S] -> [A].
at::Tensor ToTokens(const at::Tensor& answers, const TokenBatch& batch);

}  // namespace syncopate::loss
