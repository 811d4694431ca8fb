#include "rollouter/cuda/decode/product_choice.h"

#include <utility>

#include "base/log.h"
#include "base/status.h"

namespace syncopate::rollouter {

absl::StatusOr<std::unique_ptr<ProductChoice>> ProductChoice::Create(const DecodeShape& shape,
                                                                     const DecodeWeights& weights,
                                                                     DecodeBuffers& buffers, const Options& options,
                                                                     cudaStream_t stream) {
  std::unique_ptr<ProductChoice> choice(new ProductChoice(shape, weights, buffers, options, stream));
  SYNCOPATE_ASSIGN_OR_RETURN(model::MatmulLibrary library, model::MatmulLibrary::Create(buffers.workspace()));
  choice->library_ = std::make_unique<model::MatmulLibrary>(std::move(library));
  choice->head_ = std::make_unique<HeadProducts>(*choice->library_, shape, weights, buffers, options.head);
  if (options.head.bit_identical_rows) SYNCOPATE_RETURN_IF_ERROR(choice->MakeReference());
  return choice;
}

absl::Status ProductChoice::MakeReference() {
  SYNCOPATE_ASSIGN_OR_RETURN(DecodeProducts products, Make(kReferenceRows));
  reference_ = std::make_unique<const DecodeProducts>(std::move(products));
  SYNCOPATE_RETURN_IF_ERROR(head_->MakePattern(kReferenceRows));
  model::MatmulTrial::Extent extent;
  DecodeProducts::Include(shape_, weights_.layers.front(), options_.most_rows, extent);
  head_->Include(options_.most_head_rows, extent);
  absl::StatusOr<model::MatmulTrial> trial = model::MatmulTrial::Create(options_.device, extent, stream_);
  if (trial.ok()) {
    trial_ = std::make_unique<const model::MatmulTrial>(*std::move(trial));
  } else {
    SYNCOPATE_LOG(kWarning, "all numbers of rows use the kernels of %d rows, which is slower: %s", kReferenceRows,
                  trial.status().message());
  }
  return absl::OkStatus();
}

absl::StatusOr<DecodeProducts> ProductChoice::Make(int32_t rows, int32_t places) {
  SYNCOPATE_ASSIGN_OR_RETURN(DecodeProducts products,
                             DecodeProducts::Create(*library_, shape_,
                                                    {.rows = rows,
                                                     .places = places,
                                                     .add_to_residual = options_.add_to_residual,
                                                     .layer = &weights_.layers.front(),
                                                     .parts = options_.parts,
                                                     .bit_identical_rows = options_.head.bit_identical_rows,
                                                     .reference = reference_.get(),
                                                     .trial = trial_.get()}));
  if (options_.head.choose_fastest) {
    SYNCOPATE_RETURN_IF_ERROR(products.ChooseFastest(weights_, buffers_, stream_));
  }
  return products;
}

absl::Status ProductChoice::MakeHead(int32_t rows) { return head_->Make(rows, trial_.get(), stream_); }

}  // namespace syncopate::rollouter
