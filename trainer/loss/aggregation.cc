#include "trainer/loss/aggregation.h"

#include "trainer/loss/answer_sums.h"

namespace syncopate::loss {

at::Tensor Aggregate(const at::Tensor& losses, const TokenBatch& batch, const BatchExtent& extent,
                     Aggregation aggregation, int64_t max_response_tokens) {
  switch (aggregation) {
    case Aggregation::kAuto:
    case Aggregation::kTokenMean:
      return losses.sum() / extent.tokens;
    case Aggregation::kTokenSum:
      return losses.sum();
    case Aggregation::kSeqMeanTokenSum:
      return losses.sum() / extent.answers;
    case Aggregation::kSeqMeanTokenMean:
      return (losses / ToTokens(batch.answer_tokens.to(losses.scalar_type()), batch)).sum() / extent.answers;
    case Aggregation::kSeqMeanTokenSumNorm:
      return losses.sum() / (extent.answers * static_cast<double>(max_response_tokens));
    case Aggregation::kPromptMean:
      return (losses / ToTokens(batch.group_tokens.to(losses.scalar_type()), batch)).sum() / extent.groups;
  }
  return losses.sum();
}

}  // namespace syncopate::loss
