#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cuda/stream.h"
#include "model/cuda/cuda_graph.h"
#include "rollouter/cuda/decode/adapter_rows.h"
#include "rollouter/cuda/decode/chunk_passes.h"
#include "rollouter/cuda/decode/decode_buffers.h"
#include "rollouter/cuda/decode/decode_model.h"
#include "rollouter/cuda/decode/decode_products.h"
#include "rollouter/cuda/decode/device_ranks.h"
#include "rollouter/cuda/decode/product_choice.h"

namespace syncopate::rollouter {

// One sequence of a decode step: it gets one input token, whose key and value are appended, and draws the next token.
struct DecoderRow {
  int32_t slot = 0;
  int32_t token = -1;                  // the input token; -1: the token that the slot drew last
  int32_t length = 0;                  // tokens of the sequence, the input token included
  int32_t number = 0;                  // the drawn token's number in the answer
  bool wants_logits = false;           // see PassDraw::wants_logits
  const DrawFilter* filter = nullptr;  // see PassDraw::filter
  int32_t set = -1;                    // see PassRow::set
};

// The input of one step. The decoder applies the settings first, then computes the chunks of prompts, in one or several
// passes, then the decode rows.
struct DecoderStep {
  absl::Span<const SamplingSetting> sampling = {};
  absl::Span<const TableSetting> tables = {};
  // Tokens of prompts. The tokens of one sequence are adjacent and in order; `length` of a token counts the tokens of
  // the sequence up to it.
  absl::Span<const PassRow> chunk_rows = {};
  absl::Span<const PassDraw> chunk_draws = {};  // `row` is an index in chunk_rows; ascending
  absl::Span<const DecoderRow> rows = {};
};

// The input of attention over packed sequences. The queries of sequence i are its newest tokens, rows
// [query_starts[i], query_starts[i + 1]); its keys and values are rows [key_starts[i], key_starts[i + 1]). Each query
// attends to its own token and all before it. bf16 device memory: `queries` and `out` are [queries, heads, head_dim],
// `keys` and `values` are [keys, kv_heads, head_dim].
struct PackedAttention {
  const void* queries = nullptr;
  const void* keys = nullptr;
  const void* values = nullptr;
  void* out = nullptr;
  const int32_t* query_starts = nullptr;  // [sequences + 1]
  const int32_t* key_starts = nullptr;    // [sequences + 1]
  int32_t sequences = 0;
  int32_t query_count = 0, key_count = 0;
  int32_t longest_query = 0, longest_key = 0;
};

// Generates one token for each of many sequences a step: embedding, layers, head and sampler are one CUDA graph for
// each batch size. A step reads the weights and the blocks at the addresses given to Create(), which must stay mapped;
// the memory behind them may change between steps. Two steps may be in progress: the later one reads the earlier one's
// drawn tokens on the device, so the host may be one step behind.
//
// Prompts go through the same kernels in chunks (chunk_passes.h). In a pass of few rows each row attends by itself, and
// the pass is a graph. In a pass of many rows they attend as packed sequences, by options.attend_packed; the pass runs
// kernel by kernel, or as a graph that is captured when its size occurs for the second time.
//
// Not thread-safe. Only Create and Await block, and Launch while the input buffers are still being copied.
class GraphDecoder {
 public:
  struct Options {
    int device = 0;
    DecodeShape shape = {};
    DecodeWeights weights = {};
    BlockStorage storage = {};
    int32_t max_slots = 0;
    int32_t max_positions = 0;
    std::vector<float> rotations = {};  // [max_positions, head_dim / 2, 2]: cosine and sine of each position's angles
    // The batch sizes that get a graph, ascending. The last one is at least max_slots.
    std::vector<int32_t> batch_sizes = {1, 2, 4, 8, 16, 32, 64, 128, 256};
    std::vector<int32_t> chunk_sizes = {16, 64, 256};  // rows of prompts that get a graph, ascending
    // The sizes of passes of packed sequences, ascending; empty: no pass is packed. `attend_packed` computes their
    // attention: it queues the work and returns.
    std::vector<int32_t> packed_sizes = {};
    std::function<absl::Status(const PackedAttention&, cudaStream_t)> attend_packed = nullptr;
    // The most rows of a packed pass that becomes a graph: a pass of whole prompts is captured, attend_packed included,
    // when its size occurs for the second time. Without a graph the host needs as long for such a pass as the device,
    // or longer.
    int32_t captured_rows = 0;
    bool float32_logits = true;  // false: bf16, and neither filters nor logits on the host are possible
    // True: the products add the residual, in float32; false: the norm's kernel adds it after the product was rounded.
    bool add_in_products = true;
    // True: each product's kernel is the fastest by measurement; false: the library's guess, which is the same in every
    // process.
    bool choose_fastest = true;
    // True: a row's results are bit-identical in every step, for all sizes above, and in a chunk of a prompt as in a
    // decode step: all products of a kind use one algorithm, or algorithms that are bit-identical (model::MatmulTrial).
    // Requires that packed_sizes is empty and choose_fastest false.
    bool bit_identical_rows = false;
    // Not null: this is one rank of a replica; shape, weights and storage are its slice. All ranks launch the same
    // steps. Only rank 0 draws: the other ranks get its tokens with the next step, and their results of Await() are
    // undefined.
    DeviceRanks* ranks = nullptr;
  };
  static constexpr int kMostUnderWay = 2;

  // FAILED_PRECONDITION reason UNSUPPORTED_SHAPE, RESOURCE_EXHAUSTED reason OUT_OF_GPU_MEMORY, INTERNAL reasons
  // CUDA_ERROR and CUBLAS_ERROR. Takes a second or more.
  static absl::StatusOr<std::unique_ptr<GraphDecoder>> Create(const Options& options);
  // The device memory that Create() allocates, without graphs and the library's kernels. Does not read options.storage
  // and options.weights. INTERNAL reason CUDA_ERROR.
  static absl::StatusOr<int64_t> DeviceBytes(const Options& options);
  ~GraphDecoder();

  // Queues what puts the A of an adapter set in a place behind the weights: steps that are launched from now on find them
  // there. Precondition: the model has adapters. INTERNAL reason CUDA_ERROR.
  absl::Status PlaceAdapters(int32_t set, int32_t place);
  // Queues a step. Preconditions: fewer than kMostUnderWay steps are in progress, and each slot has at most one row, or
  // one chunk with one draw. INTERNAL reason CUDA_ERROR.
  absl::Status Launch(const DecoderStep& step);
  // Waits for the oldest step in progress and returns its draws: those of chunk_draws, then those of rows. Valid until
  // the next Launch. Precondition: a step is in progress. DEADLINE_EXCEEDED reason DEADLINE, INTERNAL reason
  // CUDA_ERROR, UNAVAILABLE reason RANK_LOST.
  absl::StatusOr<absl::Span<const Drawn>> Await();
  // The logits of draw number `index` among those of the step awaited last that have wants_logits; valid until the next
  // Launch.
  absl::Span<const float> WantedLogits(int32_t index) const;
  int under_way() const { return static_cast<int>(under_way_.size()); }

  cudaStream_t stream() const { return stream_.get(); }
  int32_t max_rows() const { return options_.batch_sizes.back(); }
  // The graph in which `rows` rows run. A launch of it computes the rows launched last, to measure the device's time
  // alone.
  const model::CudaGraph& GraphFor(int32_t rows) const;
  // The logits of the pass launched last, in device memory.
  const void* logits() const { return buffers_.logits(); }
  LogitsShape logits_shape() const;
  // The device memory of this object, without weights and blocks.
  int64_t device_bytes() const { return buffers_.device_bytes(); }

 private:
  struct UnderWay {
    int at = 0;  // the host buffer for its results
    int32_t draws = 0;
    int32_t logits = 0;    // rows that the host gets
    int32_t filtered = 0;  // draws
  };
  // The products and the graph of passes of one size.
  struct Bucket {
    DecodeProducts products;
    model::CudaGraph graph;
  };
  // The numbers for which the attention of a packed pass is queued; those of a graph are upper bounds.
  struct PackedExtent {
    int32_t sequences = 0;
    int32_t queries = 0, keys = 0;
    int32_t longest_query = 0, longest_key = 0;
  };
  // The graph of packed passes of whole prompts with one number of rows and one of sequences.
  struct PackedGraph {
    bool has_run = false;
    std::optional<model::CudaGraph> graph;
  };
  static constexpr int kInputPlaces = 8;

  explicit GraphDecoder(const Options& options) : options_(options) {}
  static absl::StatusOr<int32_t> GetAttentionGrid(int device);
  static DecodeBuffers::Options BufferOptions(const Options& options, int32_t attention_grid);
  absl::Status Prepare();
  // Allocates the memory that ranks share. Returns which part of the head this rank computes.
  absl::StatusOr<HeadProducts::Options> ShareMemory(const DeviceRanks::Extent& extent);
  absl::Status MakeProducts(const DeviceRanks::Extent& extent);
  absl::StatusOr<Bucket> MakeBucket(int32_t rows, RowsOf rows_of);
  // QueueLayers queues the embedding and all layers. attend(layer) queues a layer's attention, from buffers_.queries()
  // to buffers_.attended().
  using Attend = std::function<absl::Status(int32_t)>;
  absl::Status QueueLayers(DecodeProducts& products, int32_t rows, const Attend& attend);
  absl::Status QueueLayer(DecodeProducts& products, int32_t rows, const Attend& attend, int32_t layer);
  absl::Status QueuePagedLayers(DecodeProducts& products, int32_t rows, RowsOf rows_of);
  // `places`: of the rows' adapters.
  absl::Status QueuePackedLayers(int32_t rows, int32_t places, const PackedExtent& extent);
  // Launches the pass as a graph if it has one or may get one; else queues it kernel by kernel.
  absl::Status LaunchPackedLayers(int32_t rows, int32_t places, const ChunkPass& pass);
  // Queues logits and draws of a decode step's rows: draw i is from row i.
  absl::Status QueueDraws(int32_t rows);
  // Queues the logits of the rows of a chunk that are drawn from, and the draws.
  absl::Status QueueChunkDraws(int32_t drawn_rows, int32_t draws);
  // Repeats the draws that have a filter, with it; then copies all draws, and the logits that are wanted, to the host.
  absl::Status FilterAndDownload(absl::Span<const PassDraw> draws, UnderWay& launched);
  absl::StatusOr<int32_t> Upload(const Pass& pass, int32_t rows, int32_t draws);
  absl::Status LaunchSettings(const Pass& settings);
  absl::Status LaunchChunk(const DecoderStep& step, const ChunkPass& chunk, UnderWay& launched);
  absl::Status LaunchRows(Pass pass, const DecoderStep& step, UnderWay& launched);
  int32_t BatchSizeFor(int32_t rows) const;
  bool leads() const { return options_.ranks == nullptr || options_.ranks->rank() == 0; }
  // Adds the result of output (`which` = 0) or down (1), summed over all ranks, to the residual, and computes its norm.
  absl::Status AddAndNorm(int which, const DecodeProducts& products, const DecodeLayer& layer,
                          const model::NormShape& shape, const void* weight);
  // Blocks as Event::Wait does, at most kStepDeadline; returns earlier if a rank is lost (DeviceRanks::Check).
  absl::Status AwaitEvent(const cuda::Event& event, const char* what) const;

  const Options options_;
  cuda::Stream stream_;
  DecodeBuffers buffers_;
  std::array<void*, 2> parts_ = {};  // this rank's parts of the sums over ranks; null without other ranks
  StorageMaps maps_;
  int32_t attention_grid_ = 0;
  std::unique_ptr<ProductChoice> products_;
  std::map<int32_t, Bucket> batches_;  // by rows
  std::map<int32_t, Bucket> chunks_;
  // Keyed by rows and by places of the rows' adapters: prompts of the live set do not compute x a^T of another one.
  std::map<std::pair<int32_t, int32_t>, DecodeProducts> packed_;
  std::map<std::tuple<int32_t, int32_t, int32_t>, PackedGraph> packed_graphs_;  // by rows, places and sequences
  AdapterRows adapter_rows_;
  bool captures_ = true;               // false once a capture of packed_graphs_ has failed
  std::vector<cuda::Event> uploaded_;  // by input buffer: its copy to the device is complete
  std::vector<cuda::Event> done_;      // by result buffer: its step is complete
  std::deque<UnderWay> under_way_;
  int next_input_ = 0;
  int next_result_ = 0;
  UnderWay awaited_;  // the step awaited last
};

}  // namespace syncopate::rollouter
