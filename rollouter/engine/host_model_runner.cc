#include "rollouter/engine/host_model_runner.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "model/device.h"
#include "model/torch_error.h"
#include "rollouter/engine/engine_backend.h"

namespace syncopate::rollouter {
namespace {

// Returns `values` as a tensor on `device`; on the CPU it is a view, which must not outlive `values`.
at::Tensor OnDevice(const std::vector<int64_t>& values, at::Device device) {
  return at::from_blob(const_cast<int64_t*>(values.data()), {static_cast<int64_t>(values.size())}, at::kLong)
      .to(device);
}

}  // namespace

HostModelRunner::HostModelRunner(const model::ModelConfig& config, WeightArenas* arenas, std::unique_ptr<KvStore> store,
                                 at::Device device, const RunnerOptions& options, const Capacity& capacity,
                                 Communicator* ranks)
    : transformer_(config, device),
      arenas_(arenas),
      store_(std::move(store)),
      device_(device),
      capacity_(capacity),
      fixed_rows_(options.deterministic),
      padding_table_{static_cast<BlockIndex>(capacity.blocks)},
      slots_(static_cast<size_t>(options.max_sequences)) {
  if (ranks != nullptr) group_.emplace(ranks, device);
}

// What libtorch's allocator has taken for steps, used or not. Keys and values are of the same allocator.
int64_t HostModelRunner::buffer_bytes() const {
  if (!device_.is_cuda()) return 0;
  return std::max<int64_t>(model::ReadMemoryUse(device_.str()).reserved_bytes - store_->bytes(), 0);
}

absl::StatusOr<ModelRunner::Ticket> HostModelRunner::Launch(const StepPlan& plan) {
  SYNCOPATE_CHECK(static_cast<int32_t>(done_.size()) < capacity_.plans_under_way);
  c10::InferenceMode inference;
  store_->SwapOut(plan.swaps_out);
  store_->SwapIn(plan.swaps_in);
  store_->Copy(plan.copies);
  for (const SlotStart& start : plan.starts) StartSlot(start);
  for (const TableEntry& entry : plan.tables) {
    std::vector<BlockIndex>& table = slots_[entry.slot].table;
    if (static_cast<size_t>(entry.index) >= table.size()) table.resize(static_cast<size_t>(entry.index) + 1);
    table[entry.index] = entry.block;
  }
  StepResult result{plan.id, plan.version, {}, {}, {}};
  if (plan.HasRows()) SYNCOPATE_RETURN_IF_ERROR(Execute(plan, result));
  done_.push_back(std::move(result));
  return Ticket{plan.id};
}

absl::Status HostModelRunner::Execute(const StepPlan& plan, StepResult& result) {
  const auto count = static_cast<size_t>(plan.draws());
  std::vector<SlotIndex> slots(count);
  std::vector<at::Tensor> logits(count);  // of each draw, [1, V]
  // Without adapter sets there is one, which is live.
  const int32_t sets = std::max(arenas_->adapter_sets(), plan.live_set + 1);
  for (int32_t set = kNoSet; set < sets; ++set) {
    Batch batch = MakeBatch(plan, set);
    if (batch.ids.empty()) continue;
    const model::TransformerWeights weights =
        set == kNoSet ? model::WithoutAdapters(arenas_->weights()) : arenas_->weights_of(set);
    const at::Tensor all = fixed_rows_ ? ForwardInPasses(weights, batch) : Forward(weights, batch);
    for (const Batch::Draw& draw : batch.draws) {
      slots[draw.number] = draw.slot;
      if (leads()) logits[draw.number] = all.narrow(0, draw.logits_row, 1);
    }
  }
  if (group_.has_value()) SYNCOPATE_RETURN_IF_ERROR(group_->status());
  if (leads()) {
    result.tokens.reserve(count);
    result.logprobs.reserve(count);
    for (size_t i = 0; i < count; ++i) Draw(slots[i], logits[i].const_data_ptr<float>(), result);
  }
  // Ranks that do not lead also call ShareDraws(), to learn the drawn tokens.
  return group_.has_value() ? ShareDraws(slots, result) : absl::OkStatus();
}

// Only rank 0 draws: separate draws would agree only if all machines computed bit-identical logits.
absl::Status HostModelRunner::ShareDraws(const std::vector<SlotIndex>& slots, StepResult& result) {
  result.tokens.resize(slots.size());
  result.logprobs.resize(slots.size());
  SYNCOPATE_RETURN_IF_ERROR(group_->Share(result.tokens));
  for (size_t i = 0; i < slots.size(); ++i) slots_[slots[i]].last_token = result.tokens[i];
  return absl::OkStatus();
}

absl::Status HostModelRunner::ReleaseBlocks() {
  store_->Release();
  return absl::OkStatus();
}

absl::Status HostModelRunner::RestoreBlocks() {
  try {
    store_->Restore();
    return absl::OkStatus();
  } catch (const std::exception& error) {
    return model::TorchError(error, "there is no memory for keys and values");
  }
}

absl::StatusOr<StepResult> HostModelRunner::Await(const Ticket& ticket) {
  SYNCOPATE_CHECK(!done_.empty() && done_.front().plan == ticket.plan);
  StepResult result = std::move(done_.front());
  done_.pop_front();
  return result;
}

absl::Status HostModelRunner::Synchronize() {
  if (stream_.has_value()) stream_->Synchronize();
  return absl::OkStatus();
}

void HostModelRunner::StartSlot(const SlotStart& start) {
  Slot& slot = slots_[start.slot];
  slot = Slot();
  slot.seed = start.seed;
  slot.adapter = start.adapter;
  slot.sampling = start.sampling;
  slot.drawn = static_cast<int64_t>(start.drawn.size());
  if (!start.drawn.empty()) slot.last_token = start.drawn.back();
  if (!NeedsCounts(*start.sampling)) return;
  slot.counts.emplace(*start.prompt);
  for (int32_t token : start.drawn) slot.counts->AddDrawn(token);
}

HostModelRunner::Batch HostModelRunner::MakeBatch(const StepPlan& plan, int32_t set) const {
  Batch batch;
  size_t draws = 0;  // of the plan, before the present chunk or row
  auto add_row = [&batch](int32_t token, int32_t position) {
    batch.ids.push_back(token);
    batch.kv.rows.push_back({static_cast<int32_t>(batch.kv.tables.size()) - 1, position});
  };
  for (const PrefillChunk& chunk : plan.chunks) {
    const size_t first = std::exchange(draws, draws + chunk.draws.size());
    if (!IsOf(chunk.slot, plan, set)) continue;
    batch.kv.tables.push_back(slots_[chunk.slot].table);
    for (size_t i = 0; i < chunk.tokens.size(); ++i) add_row(chunk.tokens[i], chunk.begin + static_cast<int32_t>(i));
    if (chunk.draws.empty()) continue;
    // All samples of a prompt draw from the logits of its last token.
    const int64_t logits_row = static_cast<int64_t>(batch.sampled_rows.size());
    batch.sampled_rows.push_back(static_cast<int64_t>(batch.ids.size()) - 1);
    for (size_t i = 0; i < chunk.draws.size(); ++i) batch.draws.push_back({first + i, chunk.draws[i], logits_row});
  }
  for (const DecodeRow& row : plan.rows) {
    const size_t number = draws++;
    if (!IsOf(row.slot, plan, set)) continue;
    batch.kv.tables.push_back(slots_[row.slot].table);
    batch.draws.push_back({number, row.slot, static_cast<int64_t>(batch.sampled_rows.size())});
    batch.sampled_rows.push_back(static_cast<int64_t>(batch.ids.size()));
    add_row(slots_[row.slot].last_token, row.position);
  }
  return batch;
}

// Matrix libraries select another kernel for few rows, so each pass has at least `least` rows.
void HostModelRunner::Pad(Batch& batch) const {
  const size_t least = fixed_rows_ ? kFixedRows : model::Transformer::kMinRows;
  batch.kv.tables.push_back(padding_table_);
  while (batch.ids.size() < least) {
    batch.ids.push_back(0);
    batch.kv.rows.push_back({static_cast<int32_t>(batch.kv.tables.size()) - 1, 0});
  }
  if (batch.sampled_rows.empty()) return;
  while (batch.sampled_rows.size() < least) batch.sampled_rows.push_back(0);
}

at::Tensor HostModelRunner::Forward(const model::TransformerWeights& weights, Batch& batch) {
  Pad(batch);
  std::vector<int64_t> positions;
  positions.reserve(batch.kv.rows.size());
  for (const KvBatch::Row& row : batch.kv.rows) positions.push_back(row.position);
  const auto attention = store_->MakeAttention(std::move(batch.kv));
  const at::Tensor hidden = transformer_.Forward(weights, OnDevice(batch.ids, device_), OnDevice(positions, device_),
                                                 *attention, group_.has_value() ? &*group_ : nullptr);
  if (!leads()) return at::empty({0, 0});
  const at::Tensor sampled = hidden.index_select(0, OnDevice(batch.sampled_rows, device_));
  return transformer_.Logits(weights, sampled).contiguous().to(at::kCPU);
}

// The rows of a sequence are in order, so the positions that a row attends to are in its own pass or an earlier one.
at::Tensor HostModelRunner::ForwardInPasses(const model::TransformerWeights& weights, const Batch& batch) {
  const int64_t rows = std::ssize(batch.ids);
  std::vector<at::Tensor> logits;
  auto sampled = batch.sampled_rows.begin();  // the row numbers ascend
  for (int64_t begin = 0; begin < rows; begin += kFixedRows) {
    const int64_t end = std::min<int64_t>(rows, begin + kFixedRows);
    Batch pass;
    pass.ids.assign(batch.ids.begin() + begin, batch.ids.begin() + end);
    pass.kv.tables = batch.kv.tables;
    pass.kv.rows.assign(batch.kv.rows.begin() + begin, batch.kv.rows.begin() + end);
    for (; sampled != batch.sampled_rows.end() && *sampled < end; ++sampled) {
      pass.sampled_rows.push_back(*sampled - begin);
    }
    const int64_t count = static_cast<int64_t>(pass.sampled_rows.size());
    const at::Tensor all = Forward(weights, pass);
    logits.push_back(leads() ? all.narrow(0, 0, count) : all);
  }
  return at::cat(logits);
}

void HostModelRunner::Draw(SlotIndex index, const float* logits, StepResult& result) {
  Slot& slot = slots_[index];
  SampledToken drawn = SampleToken(logits, transformer_.config().vocab_size, *slot.sampling, slot.seed, slot.drawn,
                                   slot.counts.has_value() ? &*slot.counts : nullptr);
  ++slot.drawn;
  slot.last_token = drawn.token;
  if (slot.counts.has_value()) slot.counts->AddDrawn(drawn.token);
  if (slot.sampling->top_logprobs > 0) {
    // `top_logprobs` stays empty until a draw asks for it; earlier draws then get empty lists.
    result.top_logprobs.resize(result.tokens.size());
    result.top_logprobs.push_back(std::move(drawn.top));
  } else if (!result.top_logprobs.empty()) {
    result.top_logprobs.emplace_back();
  }
  result.tokens.push_back(drawn.token);
  result.logprobs.push_back(drawn.logprob);
}

}  // namespace syncopate::rollouter
