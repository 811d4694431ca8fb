#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cuda/stream.h"
#include "model/cuda/cuda_graph.h"
#include "rollouter/cuda/decode/chunk_passes.h"
#include "rollouter/cuda/decode/decode_buffers.h"
#include "rollouter/cuda/decode/decode_model.h"
#include "rollouter/cuda/decode/decode_products.h"
#include "rollouter/cuda/decode/device_ranks.h"
#include "rollouter/cuda/decode/product_choice.h"

namespace syncopate::rollouter {

// A sequence takes a token and draws the next one.
struct DecoderRow {
  int32_t slot = 0;
  int32_t token = -1;                  // the one that it takes; -1: the one that the slot has drawn last
  int32_t length = 0;                  // tokens of the sequence with it; its key and value are appended
  int32_t number = 0;                  // of the token that is drawn, in its answer
  bool wants_logits = false;           // as PassDraw
  const DrawFilter* filter = nullptr;  // likewise
};

// A step. Settings come first, then chunks of prompts, in passes of at most max_chunk_rows(), then the decode rows.
struct DecoderStep {
  absl::Span<const SamplingSetting> sampling = {};
  absl::Span<const TableSetting> tables = {};
  // Tokens of prompts; those of a sequence are neighbours, in order, with the lengths that they bring it to.
  absl::Span<const PassRow> chunk_rows = {};
  absl::Span<const PassDraw> chunk_draws = {};  // `row` counts in chunk_rows and does not fall
  absl::Span<const DecoderRow> rows = {};
};

// Attention of packed sequences: the queries of sequence i are rows [query_starts[i], query_starts[i + 1]), its newest
// tokens; its keys and values are [key_starts[i], key_starts[i + 1]). Each query attends to its own token and all before
// it. bf16 device memory: queries and out [queries, heads, head_dim], keys and values [keys, kv_heads, head_dim].
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

// Generates one token for each of many sequences a step: embedding, layers, head and sampler as one CUDA graph for each
// size of batch. A step reads the weights and the blocks at the addresses given at first, which must stay mapped; what
// is behind them may change between steps. The host may run a step behind: two steps may be under way, and the later
// one takes the earlier one's tokens on the device.
//
// Prompts go through the same kernels in chunks. Few of their tokens at a time are rows of their own for attention, in
// graphs; more are packed sequences for options.attend_packed, in graphs that are made when they are first wanted again,
// or kernel by kernel: chunk_passes.h.
//
// Not thread-safe. Blocks in Create and Await only.
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
    // A graph each; rising. The last is at least max_slots.
    std::vector<int32_t> batch_sizes = {1, 2, 4, 8, 16, 32, 64, 128, 256};
    std::vector<int32_t> chunk_sizes = {16, 64, 256};  // likewise, of rows of prompts
    // Sizes of passes of packed sequences, rising; empty: none. Queues and returns.
    std::vector<int32_t> packed_sizes = {};
    std::function<absl::Status(const PackedAttention&, cudaStream_t)> attend_packed = nullptr;
    // Passes of up to so many rows, if all their prompts are whole, become graphs once their size comes again:
    // attend_packed is captured then. Kernel by kernel such a pass takes the host as long as the device, or longer.
    int32_t captured_rows = 0;
    bool float32_logits = true;  // else bf16, and the host gets none
    // Residuals are added inside the products, in float32, instead of by the norm's kernel after rounding.
    bool add_in_products = true;
    // Each product's kernel is chosen by measuring; else it is the library's guess, which is the same in every process.
    bool choose_fastest = true;
    // What a row gives has the same bits in every step, with any sizes here, and in a chunk of a prompt as in a decode step:
    // all products of a kind go one way, or ways that are alike (model::MatmulTrial). Wants no packed sizes, and not
    // choose_fastest.
    bool rows_alike = false;
    // This is one rank of a replica: shape, weights and storage are its slice. All ranks launch the same steps. Rank 0
    // draws, and the others get its tokens with the next step; what they await is of no meaning.
    DeviceRanks* ranks = nullptr;
  };
  static constexpr int kMostUnderWay = 2;

  // FAILED_PRECONDITION reason UNSUPPORTED_SHAPE, RESOURCE_EXHAUSTED reason OUT_OF_GPU_MEMORY, INTERNAL reasons
  // CUDA_ERROR and CUBLAS_ERROR. Takes a second or more.
  static absl::StatusOr<std::unique_ptr<GraphDecoder>> Create(const Options& options);
  // Device memory that Create() takes, graphs and the library's kernels apart; options.storage and weights are not looked
  // at. INTERNAL reason CUDA_ERROR.
  static absl::StatusOr<int64_t> DeviceBytes(const Options& options);
  ~GraphDecoder();

  // Queues a step. A slot has at most one row, or one chunk with one draw. Less than kMostUnderWay steps are under way.
  // Anything else is a bug of the caller's. INTERNAL reason CUDA_ERROR.
  absl::Status Launch(const DecoderStep& step);
  // Waits for the step launched first of those under way, of which there must be one: what was drawn, for chunk_draws
  // and then for rows; valid until the next Launch. DEADLINE_EXCEEDED reason DEADLINE, INTERNAL reason CUDA_ERROR,
  // UNAVAILABLE reason RANK_LOST.
  absl::StatusOr<absl::Span<const Drawn>> Await();
  // The logits of the draw of the step awaited last that was the `index`-th to want them; valid until the next Launch.
  absl::Span<const float> WantedLogits(int32_t index) const;
  int under_way() const { return static_cast<int>(under_way_.size()); }

  cudaStream_t stream() const { return stream_.get(); }
  int32_t max_rows() const { return options_.batch_sizes.back(); }
  // The graph that `rows` rows run in: for measuring what the device takes by itself, on the rows launched last.
  const model::CudaGraph& GraphFor(int32_t rows) const;
  // Of the pass launched last, device memory.
  const void* logits() const { return buffers_.logits(); }
  LogitsShape logits_shape() const;
  // Device memory taken by this object, weights and blocks apart.
  int64_t device_bytes() const { return buffers_.device_bytes(); }

 private:
  struct UnderWay {
    int at = 0;  // of the host's places for results
    int32_t draws = 0;
    int32_t logits = 0;    // rows that the host gets
    int32_t filtered = 0;  // draws
  };
  // What runs passes of one size.
  struct Bucket {
    DecodeProducts products;
    model::CudaGraph graph;
  };
  // What attention of a pass of packed sequences is made for.
  struct PackedExtent {
    int32_t sequences = 0;
    int32_t queries = 0, keys = 0;
    int32_t longest_query = 0, longest_key = 0;
  };
  // Passes of whole prompts, for one number of rows and one of sequences.
  struct PackedGraph {
    bool has_run = false;
    std::optional<model::CudaGraph> graph;
  };
  static constexpr int kInputPlaces = 8;

  explicit GraphDecoder(const Options& options) : options_(options) {}
  static absl::StatusOr<int32_t> GetAttentionGrid(int device);
  static DecodeBuffers::Options BufferOptions(const Options& options, int32_t attention_grid);
  absl::Status Prepare();
  // The parts of the head that this rank computes, and the memory that ranks share.
  absl::StatusOr<HeadProducts::Options> ShareMemory(const DeviceRanks::Extent& extent);
  absl::Status MakeProducts(const DeviceRanks::Extent& extent);
  absl::StatusOr<Bucket> MakeBucket(int32_t rows, RowsOf rows_of);
  // Embedding and all layers; attend(layer) is from `queries` to `attended`.
  using Attend = std::function<absl::Status(int32_t)>;
  absl::Status QueueLayers(DecodeProducts& products, int32_t rows, const Attend& attend);
  absl::Status QueueLayer(DecodeProducts& products, int32_t rows, const Attend& attend, int32_t layer);
  absl::Status QueuePagedLayers(DecodeProducts& products, int32_t rows, RowsOf rows_of);
  absl::Status QueuePackedLayers(int32_t rows, const PackedExtent& extent);
  // As a graph, if it is one or may become one.
  absl::Status LaunchPackedLayers(int32_t rows, const ChunkPass& pass);
  // Logits and draws of a decode step's rows, which are drawn from in order.
  absl::Status QueueDraws(int32_t rows);
  // Logits of the rows of a chunk that are drawn from, and the draws.
  absl::Status QueueChunkDraws(int32_t drawn_rows, int32_t draws);
  // What is drawn by a filter is drawn anew; then all of it, and wanted logits, go to the host.
  absl::Status FilterAndDownload(absl::Span<const PassDraw> draws, UnderWay& launched);
  absl::StatusOr<int32_t> Upload(const Pass& pass, int32_t rows, int32_t draws);
  absl::Status LaunchSettings(const Pass& settings);
  absl::Status LaunchChunk(const DecoderStep& step, const ChunkPass& chunk, UnderWay& launched);
  absl::Status LaunchRows(Pass pass, const DecoderStep& step, UnderWay& launched);
  int32_t BatchSizeFor(int32_t rows) const;
  bool leads() const { return options_.ranks == nullptr || options_.ranks->rank() == 0; }
  // The residual with what output (0) or down (1) gave, over all ranks, and its norm.
  absl::Status AddAndNorm(int which, const model::NormShape& shape, const void* added, const void* weight);
  // Blocks as Event::Wait, at most kStepDeadline, and no longer than the ranks are there.
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
  std::map<int32_t, DecodeProducts> packed_;
  std::map<std::pair<int32_t, int32_t>, PackedGraph> packed_graphs_;  // by rows and sequences
  bool captures_ = true;                                              // no capture of them has failed
  std::vector<cuda::Event> uploaded_;                                 // from each of the host's places for inputs
  std::vector<cuda::Event> done_;                                     // to each of the host's places for results
  std::deque<UnderWay> under_way_;
  int next_input_ = 0;
  int next_result_ = 0;
  UnderWay awaited_;  // last
};

}  // namespace syncopate::rollouter
