#include "rollouter/cuda/cuda_model_runner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/log.h"
#include "base/status.h"
#include "cuda/cuda_status.h"
#include "cuda/device.h"
#include "rollouter/cuda/packed_attention.h"
#include "rollouter/engine/kv_budget.h"
#include "rollouter/engine/sampler.h"

namespace syncopate::rollouter {
namespace {

using cuda::CudaStatus;

static_assert(kTokensPerBlock == kBlockTokens);

constexpr int64_t kHalfBytes = 2;
// Memory not counted elsewhere: graphs, kernels of the libraries, and libtorch's attention of one layer.
constexpr int64_t kUncounted = int64_t{1} << 30;
constexpr int32_t kLeastPackedRows = 512;
// A pass of more tokens keeps the device busy long enough for the host to queue it kernel by kernel.
constexpr int32_t kMostCapturedRows = 4096;
constexpr int64_t kMostPackedScratch = int64_t{64} << 20;

int64_t LayerBlockBytes(const HeadCounts& heads) {
  return int64_t{heads.kv_heads} * kTokensPerBlock * heads.head_dim * kHalfBytes;
}

// The batch sizes that get a graph: these sizes below `most`, and `most`.
std::vector<int32_t> BatchSizes(int32_t most) {
  std::vector<int32_t> sizes;
  for (int32_t size : {1, 2, 4, 8, 16, 32, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896}) {
    if (size < most) sizes.push_back(size);
  }
  sizes.push_back(most);
  return sizes;
}

// The sizes of packed prefill passes, by doubling.
std::vector<int32_t> PackedSizes(int64_t max_prefill_tokens) {
  std::vector<int32_t> sizes;
  for (int64_t size = kLeastPackedRows; size < max_prefill_tokens; size *= 2) {
    sizes.push_back(static_cast<int32_t>(size));
  }
  sizes.push_back(static_cast<int32_t>(std::max<int64_t>(kLeastPackedRows, max_prefill_tokens)));
  return sizes;
}

// The sizes of prefill passes whose attention runs in a graph, one graph each; more tokens need several passes.
std::vector<int32_t> ChunkSizes(int64_t max_prefill_tokens) {
  std::vector<int32_t> sizes = {16};
  for (int32_t size = 64; size <= kMaxAttentionRows && sizes.back() < max_prefill_tokens; size *= 2) {
    sizes.push_back(size);
  }
  return sizes;
}

// The options of the decoder, except those for the attention of prompts.
absl::StatusOr<GraphDecoder::Options> MakeDecoderOptions(const model::ModelConfig& config, const DecodeViews& views,
                                                         const CudaModelRunner::Options& options) {
  const RunnerOptions& runner = options.runner;
  if (runner.max_sequences > CudaModelRunner::kMostSequences) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_OPTIONS",
                 absl::StrCat("rollout.max_sequences ", runner.max_sequences, " is above ",
                              CudaModelRunner::kMostSequences, ", the most that one GPU decodes at once"));
  }
  if (runner.deterministic && options.ranks != nullptr && options.ranks->world() > 2) {
    return Error(
        absl::StatusCode::kInvalidArgument, "BAD_OPTIONS",
        absl::StrCat("rollout.deterministic: over ", options.ranks->world(),
                     " ranks the bits of sums depend on the batch; rollout.tensor_parallel may be 1 or 2 with it"));
  }
  GraphDecoder::Options decoder;
  decoder.device = options.device;
  decoder.shape = views.shape;
  decoder.weights = views.weights;
  decoder.max_slots = static_cast<int32_t>(runner.max_sequences);
  decoder.max_positions = static_cast<int32_t>(runner.max_context);
  decoder.rotations = MakeRotations(config, runner.max_context);
  decoder.bit_identical_rows = runner.deterministic;
  // A measured choice of kernels could differ from process to process.
  decoder.choose_fastest = !runner.deterministic;
  decoder.ranks = options.ranks;
  decoder.batch_sizes = BatchSizes(decoder.max_slots);
  if (runner.deterministic) {
    decoder.chunk_sizes = ChunkSizes(runner.max_prefill_tokens);
  } else {
    decoder.packed_sizes = PackedSizes(runner.max_prefill_tokens);
  }
  return decoder;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaModelRunner>> CudaModelRunner::Create(const model::ModelConfig& config,
                                                                         const DecodeViews& views,
                                                                         const Options& options) {
  const RunnerOptions& runner = options.runner;
  const DecodeShape& shape = views.shape;
  SYNCOPATE_ASSIGN_OR_RETURN(GraphDecoder::Options decoder, MakeDecoderOptions(config, views, options));
  const cuda::DeviceScope scope(options.device);
  auto scratch = std::make_shared<cuda::DeviceBuffer>();
  if (!decoder.packed_sizes.empty()) {
    const int64_t bytes = PreparePacked(shape.heads, options.device, runner.max_sequences, runner.max_context);
    if (bytes > 0 && bytes <= kMostPackedScratch) {
      SYNCOPATE_ASSIGN_OR_RETURN(*scratch, cuda::DeviceBuffer::Create(options.device, bytes, "attention of prompts"));
      decoder.captured_rows = kMostCapturedRows;
    }
  }
  decoder.attend_packed = [heads = shape.heads, device = options.device, scratch](const PackedAttention& call,
                                                                                  cudaStream_t stream) {
    return AttendPacked(call, heads, device, *scratch, stream);
  };
  SYNCOPATE_ASSIGN_OR_RETURN(const int64_t decoder_bytes, GraphDecoder::DeviceBytes(decoder));
  const int64_t filter_bytes = runner.max_sequences * SlotFilters::BytesOfOne(shape.vocab);
  SYNCOPATE_ASSIGN_OR_RETURN(const cuda::GpuMemory memory, cuda::ReadGpuMemory(options.device));
  const KvForm form{.layers = shape.layers, .piece_bytes = LayerBlockBytes(shape.heads)};
  SYNCOPATE_ASSIGN_OR_RETURN(KvChoice choice, ChooseKvParts({.total = memory.total,
                                                             .free = memory.free,
                                                             .share = options.memory_share,
                                                             .reserved = decoder_bytes + filter_bytes + kUncounted,
                                                             .others = options.others_bytes,
                                                             .block_bytes = form.block_bytes(),
                                                             .max_context = runner.max_context,
                                                             .blocks_asked = runner.blocks,
                                                             .blocks_of_use = runner.BlocksForAll()},
                                                            form, options.lending, options.set_bytes));
  if (options.lending != KvLending::kNever) {
    SYNCOPATE_LOG(kInfo, "sync.install %s: %s", options.lending == KvLending::kAuto ? "auto" : "borrowed", choice.why);
    SYNCOPATE_RETURN_IF_ERROR(options.add_set(choice.lends));
  }
  // All ranks must have the same number of blocks, because one scheduler allocates for all of them.
  if (options.agree_on_least != nullptr) {
    SYNCOPATE_ASSIGN_OR_RETURN(const int64_t least, options.agree_on_least(choice.parts.blocks()));
    choice.parts = KvParts::MakeWhole(least, form.layers, form.piece_bytes);
  }
  const int64_t blocks = choice.parts.blocks();
  const Capacity capacity{.blocks = blocks,
                          .host_blocks = runner.host_blocks,
                          .lent_blocks = choice.parts.lent_blocks(),
                          .max_kept_blocks = blocks,  // their memory is allocated in any case
                          .plans_under_way = runner.plans_under_way > 0
                                                 ? std::min(runner.plans_under_way, GraphDecoder::kMostUnderWay)
                                                 : GraphDecoder::kMostUnderWay,
                          .serves_base = shape.adapter_rank > 0};
  std::unique_ptr<CudaModelRunner> made(new CudaModelRunner(options, shape, choice.parts, capacity));
  made->packed_scratch_ = scratch;
  SYNCOPATE_RETURN_IF_ERROR(made->Allocate(std::move(decoder)));
  SYNCOPATE_LOG(kInfo, "decodes by graphs: %d sequences, keys and values of %d tokens in %d MiB, buffers of %d MiB",
                runner.max_sequences, blocks * kBlockTokens, made->kv_bytes() >> 20, decoder_bytes >> 20);
  return made;
}

absl::Status CudaModelRunner::Allocate(GraphDecoder::Options decoder) {
  const int64_t layer_bytes = shape_.layers * LayerBlockBytes(shape_.heads);
  const bool lends = parts_.lent_parts > 0;
  SYNCOPATE_ASSIGN_OR_RETURN(
      storage_,
      cuda::LendingArena::Create(parts_.bytes(),
                                 {.offset = lends ? parts_.lent_offset() : 0, .bytes = lends ? options_.set_bytes : 0},
                                 {.device = options_.device, .what = "keys and values"}));
  SYNCOPATE_RETURN_IF_ERROR(ReturnBlocks());
  absl::StatusOr<cuda::PinnedBuffer> swapped = cuda::PinnedBuffer::Create(2 * capacity_.host_blocks * layer_bytes);
  SYNCOPATE_RETURN_IF_ERROR(Annotate(swapped.status(), "rollout.host_kv_memory cannot be had, lower it"));
  swapped_ = *std::move(swapped);
  const int64_t most_pairs = 2 * capacity_.blocks + capacity_.host_blocks;
  for (int i = 0; i < GraphDecoder::kMostUnderWay; ++i) {
    SYNCOPATE_ASSIGN_OR_RETURN(cuda::PinnedBuffer pairs,
                               cuda::PinnedBuffer::Create(most_pairs * int64_t{sizeof(BlockPair)}));
    pairs_.push_back(std::move(pairs));
  }
  decoder.storage = {storage_->data(), storage_->data() + parts_.value_pieces * parts_.piece_bytes, shape_.layers,
                     parts_.layer_pieces, parts_.parts * parts_.part_pieces};
  SYNCOPATE_ASSIGN_OR_RETURN(decoder_, GraphDecoder::Create(decoder));
  return absl::OkStatus();
}

BlockPlaces CudaModelRunner::DevicePlaces() const {
  const int64_t piece = parts_.piece_bytes;
  return {storage_->data(), storage_->data() + parts_.value_pieces * piece, parts_.layer_pieces * piece, piece};
}

BlockPlaces CudaModelRunner::HostPlaces() const {
  const int64_t block = LayerBlockBytes(shape_.heads), layer = capacity_.host_blocks * block;
  return {swapped_.data(), swapped_.data() + shape_.layers * layer, layer, block};
}

absl::Status CudaModelRunner::MoveBlocks(const StepPlan& plan) {
  // Each plan in progress has a pairs buffer of its own, because the device reads it after this returns.
  BlockPair* const pairs = pairs_[static_cast<size_t>(launched_ % GraphDecoder::kMostUnderWay)].as<BlockPair>();
  const int64_t block = LayerBlockBytes(shape_.heads);
  BlockPair* end = pairs;
  auto move = [&](BlockPair* begin, const BlockPlaces& from, const BlockPlaces& to) {
    return CudaStatus(
        CopyBlocks(begin, static_cast<int32_t>(end - begin), shape_.layers, block, from, to, decoder_->stream()),
        "moving blocks");
  };
  BlockPair* begin = end;
  for (const BlockSwap& swap : plan.swaps_out) *end++ = {parts_.Place(swap.block), swap.host_block};
  SYNCOPATE_RETURN_IF_ERROR(move(begin, DevicePlaces(), HostPlaces()));
  begin = end;
  for (const BlockSwap& swap : plan.swaps_in) *end++ = {swap.host_block, parts_.Place(swap.block)};
  SYNCOPATE_RETURN_IF_ERROR(move(begin, HostPlaces(), DevicePlaces()));
  begin = end;
  for (const BlockCopy& copy : plan.copies) *end++ = {parts_.Place(copy.from), parts_.Place(copy.to)};
  return move(begin, DevicePlaces(), DevicePlaces());
}

absl::Status CudaModelRunner::PlaceAdapters(int32_t live, const std::vector<int32_t>& sets) {
  if (shape_.adapter_rank == 0) return absl::OkStatus();
  for (const AdapterPlaces::Copy& copy : places_.BeginPlan(live, sets, options_.adapter_contents())) {
    SYNCOPATE_RETURN_IF_ERROR(decoder_->PlaceAdapters(copy.set, copy.place));
  }
  return absl::OkStatus();
}

absl::StatusOr<SamplingSetting> CudaModelRunner::StartSlot(const SlotStart& start) {
  Slot& slot = slots_[start.slot];
  filters_.Return(std::move(slot.filter));
  slot = {.drawn = static_cast<int32_t>(start.drawn.size()),
          .next_token = start.drawn.empty() ? -1 : start.drawn.back(),
          .adapter = start.adapter,
          .sampling = start.sampling};
  // Only rank 0 draws, so only it needs a filter.
  if (leads()) {
    SYNCOPATE_ASSIGN_OR_RETURN(slot.filter, filters_.Lend(start, decoder_->stream()));
  }
  const float temperature = start.sampling->temperature;
  return SamplingSetting{start.slot,
                         {.seed = start.seed, .inverse_temperature = temperature > 0 ? 1 / temperature : 0.0f}};
}

PassDraw CudaModelRunner::AddDraw(SlotIndex index, int32_t row, UnderWay& launched) {
  Slot& slot = slots_[index];
  const bool wants_logits = slot.sampling->top_logprobs > 0 && leads();
  launched.draws.push_back(wants_logits ? slot.sampling : nullptr);
  slot.next_token = -1;
  return {index, slot.drawn++, row, wants_logits, slot.filter != nullptr ? &slot.filter->filter : nullptr};
}

absl::StatusOr<ModelRunner::Ticket> CudaModelRunner::Launch(const StepPlan& plan) {
  SYNCOPATE_CHECK(static_cast<int32_t>(under_way_.size()) < capacity_.plans_under_way);
  const cuda::DeviceScope scope(options_.device);
  std::vector<SamplingSetting> sampling;
  for (const SlotStart& start : plan.starts) {
    SYNCOPATE_ASSIGN_OR_RETURN(const SamplingSetting setting, StartSlot(start));
    sampling.push_back(setting);
  }
  // The stream runs the moves before the rows. The settings that StartSlot returned take effect only in
  // GraphDecoder::Launch, so they may be prepared first.
  SYNCOPATE_RETURN_IF_ERROR(MoveBlocks(plan));
  std::vector<TableSetting> tables;
  for (const TableEntry& entry : plan.tables) {
    tables.push_back({entry.slot, entry.index, parts_.Place(entry.block)});
  }

  UnderWay launched{plan.id, plan.version, {}};
  std::vector<int32_t> sets;  // of the rows
  const auto get_set = [&](SlotIndex slot) {
    const int32_t set = GetAdapterSet(slots_[slot].adapter, plan.live_set);
    if (set != kNoSet) sets.push_back(set);
    return MakeRowSet(set, AdapterPlaces::GetPlace(set, plan.live_set));
  };
  std::vector<PassRow> chunk_rows;
  std::vector<PassDraw> chunk_draws;
  for (const PrefillChunk& chunk : plan.chunks) {
    int32_t length = chunk.begin;
    const int32_t set = get_set(chunk.slot);
    for (int32_t token : chunk.tokens) chunk_rows.push_back({chunk.slot, token, ++length, set});
    const int32_t last = static_cast<int32_t>(chunk_rows.size()) - 1;
    for (SlotIndex slot : chunk.draws) chunk_draws.push_back(AddDraw(slot, last, launched));
  }
  std::vector<DecoderRow> rows;
  for (const DecodeRow& row : plan.rows) {
    const int32_t token = slots_[row.slot].next_token;
    const PassDraw draw = AddDraw(row.slot, /*row=*/0, launched);
    rows.push_back({row.slot, token, row.position + 1, draw.number, draw.wants_logits, draw.filter, get_set(row.slot)});
  }
  SYNCOPATE_RETURN_IF_ERROR(PlaceAdapters(plan.live_set, sets));
  SYNCOPATE_RETURN_IF_ERROR(decoder_->Launch(
      {.sampling = sampling, .tables = tables, .chunk_rows = chunk_rows, .chunk_draws = chunk_draws, .rows = rows}));
  under_way_.push_back(std::move(launched));
  ++launched_;
  return Ticket{plan.id};
}

absl::StatusOr<StepResult> CudaModelRunner::Await(const Ticket& ticket) {
  SYNCOPATE_CHECK(!under_way_.empty() && under_way_.front().plan == ticket.plan);
  const cuda::DeviceScope scope(options_.device);
  SYNCOPATE_ASSIGN_OR_RETURN(const absl::Span<const Drawn> drawn, decoder_->Await());
  const UnderWay step = std::move(under_way_.front());
  under_way_.pop_front();
  SYNCOPATE_CHECK(drawn.size() == step.draws.size());
  StepResult result{step.plan, step.version, {}, {}, {}};
  result.tokens.reserve(drawn.size());
  result.logprobs.reserve(drawn.size());
  int32_t logits = 0;
  for (size_t i = 0; i < drawn.size(); ++i) {
    result.tokens.push_back(drawn[i].token);
    result.logprobs.push_back(drawn[i].logprob);
    if (step.draws[i] == nullptr) continue;
    const SamplingParams& sampling = *step.draws[i];
    // The vector stays empty if no draw of the step asks for it.
    result.top_logprobs.resize(drawn.size());
    result.top_logprobs[i] = LikeliestTokens(decoder_->WantedLogits(logits++).data(), shape_.vocab,
                                             sampling.temperature, sampling.top_logprobs);
  }
  return result;
}

absl::Status CudaModelRunner::Synchronize() {
  SYNCOPATE_CHECK(under_way_.empty());
  const cuda::DeviceScope scope(options_.device);
  return CudaStatus(cudaStreamSynchronize(decoder_->stream()), "waiting for what was launched");
}

}  // namespace syncopate::rollouter
