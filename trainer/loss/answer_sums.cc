#include "trainer/loss/answer_sums.h"

namespace syncopate::loss {
namespace {

at::Tensor Reduce(const at::Tensor& tokens, const char* how, const TokenBatch& batch) {
  // `unsafe` leaves out checks of the lengths that would read them from the device.
  return at::segment_reduce(tokens.detach().to(at::kDouble), how, batch.answer_tokens, /*indices=*/{}, /*offsets=*/{},
                            /*axis=*/0, /*unsafe=*/true);
}

}  // namespace

at::Tensor AnswerSums(const at::Tensor& tokens, const TokenBatch& batch) { return Reduce(tokens, "sum", batch); }
at::Tensor AnswerMeans(const at::Tensor& tokens, const TokenBatch& batch) { return Reduce(tokens, "mean", batch); }
at::Tensor AnswerMins(const at::Tensor& tokens, const TokenBatch& batch) { return Reduce(tokens, "min", batch); }
at::Tensor AnswerMaxs(const at::Tensor& tokens, const TokenBatch& batch) { return Reduce(tokens, "max", batch); }

at::Tensor ToTokens(const at::Tensor& answers, const TokenBatch& batch) {
  return answers.index_select(0, batch.answer);
}

}  // namespace syncopate::loss
