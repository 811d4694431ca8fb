#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model/cuda/cuda_graph.h"
#include "rollouter/cuda/decode/decode_buffers.h"
#include "rollouter/cuda/decode/decode_model.h"
#include "rollouter/cuda/decode/decode_products.h"
#include "synchronizer/cuda/stream.h"

namespace syncopate::rollouter {

// Generates one token for each of many sequences a step: embedding, layers, head and sampler as one CUDA graph for each
// size of batch. A step reads the weights and the blocks at the addresses given at first, which must stay mapped; what
// is behind them may change between steps. The host may run a step behind: two steps may be under way, and the later
// one takes the earlier one's tokens on the device.
//
// Not thread-safe. Blocks in Create and Await only.
class GraphDecoder {
 public:
  struct Options {
    int device = 0;
    DecodeShape shape;
    DecodeWeights weights;
    BlockStorage storage;
    int32_t max_slots = 0;
    int32_t max_positions = 0;
    double rope_theta = 10000;
    std::vector<int32_t> batch_sizes = {1, 2, 4, 8, 16, 32, 64, 128, 256};  // a graph each; rising
    bool float32_logits = true;                                             // else bf16
    // Residuals are added inside the products, in float32, instead of by the norm's kernel after rounding.
    bool add_in_products = true;
    // Each product's kernel is chosen by measuring; else it is the library's guess, which is the same in every process.
    bool choose_fastest = true;
  };
  static constexpr int kMostUnderWay = 2;

  // FAILED_PRECONDITION reason UNSUPPORTED_SHAPE, RESOURCE_EXHAUSTED reason OUT_OF_GPU_MEMORY, INTERNAL reasons
  // CUDA_ERROR and CUBLAS_ERROR. Takes a second or more.
  static absl::StatusOr<std::unique_ptr<GraphDecoder>> Create(const Options& options);
  ~GraphDecoder();

  // Queues a step, of one row at least and max_rows() at most, no two of one slot. Less than kMostUnderWay steps are
  // under way. Anything else is a bug of the caller's. INTERNAL reason CUDA_ERROR.
  absl::Status Launch(const DecoderStep& step);
  // Waits for the step launched first of those under way, of which there must be one: what its rows drew, in order;
  // valid until the next Launch. DEADLINE_EXCEEDED reason DEADLINE, INTERNAL reason CUDA_ERROR.
  absl::StatusOr<absl::Span<const Drawn>> Await();
  int under_way() const { return static_cast<int>(under_way_.size()); }

  cudaStream_t stream() const { return stream_.get(); }
  int32_t max_rows() const { return options_.batch_sizes.back(); }
  // The graph that `rows` rows run in: for measuring what the device takes by itself, on the rows launched last.
  const model::CudaGraph& GraphFor(int32_t rows) const;
  // Of the step launched last, device memory, a row each.
  const void* logits() const { return buffers_.logits(); }
  LogitsShape logits_shape() const;
  // Device memory taken by this object, weights and blocks apart.
  int64_t device_bytes() const { return buffers_.device_bytes(); }

 private:
  struct UnderWay {
    int at = 0;  // of the host's places
    int32_t rows = 0;
  };
  explicit GraphDecoder(const Options& options) : options_(options) {}
  absl::Status Prepare();
  absl::Status MakeGraph(int32_t batch_size);
  absl::Status QueueStep(DecodeProducts& products, int32_t rows);
  absl::Status QueueLayer(DecodeProducts& products, int32_t rows, int32_t layer);
  int32_t BatchSizeFor(int32_t rows) const;

  const Options options_;
  synchronizer::Stream stream_;
  DecodeBuffers buffers_;
  StorageMaps maps_;
  int32_t attention_grid_ = 0;
  std::unique_ptr<model::MatmulLibrary> library_;
  std::map<int32_t, DecodeProducts> products_;  // by batch size
  std::map<int32_t, model::CudaGraph> graphs_;
  std::vector<synchronizer::Event> done_;  // of each of the host's places
  std::deque<UnderWay> under_way_;
  int next_ = 0;
};

}  // namespace syncopate::rollouter
