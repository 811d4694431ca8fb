#include "rollouter/engine/engine.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rollouter/engine/sampler.h"

namespace syncopate::rollouter {
namespace {

absl::Status BadRequest(const std::string& message) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_REQUEST", message);
}

// `values` on `device`: on the CPU a view, which must not outlive them.
at::Tensor OnDevice(const std::vector<int64_t>& values, at::Device device) {
  return at::from_blob(const_cast<int64_t*>(values.data()), {static_cast<int64_t>(values.size())}, at::kLong)
      .to(device);
}

// Where keys and values are kept: in the weights' dtype on a GPU, always float32 on the CPU.
at::TensorOptions CacheOptions(const EngineBackend& backend) {
  const at::Device device = backend.device();
  return at::TensorOptions(device.is_cpu() ? at::kFloat : model::ScalarTypeOf(backend.dtype())).device(device);
}

}  // namespace

absl::Status Engine::Options::Validate() const {
  if (max_sequences <= 0 || max_prefill_tokens <= 0) {
    return BadRequest(absl::StrCat("max_sequences ", max_sequences, " and max_prefill_tokens ", max_prefill_tokens,
                                   " must be positive"));
  }
  return absl::OkStatus();
}

Engine::Engine(const model::ModelConfig& config, std::shared_ptr<EngineBackend> backend, const Options& options)
    : options_(options),
      backend_(std::move(backend)),
      transformer_(config, backend_->device()),
      policy_(&backend_->arenas()),
      cache_(config, options.max_sequences, CacheOptions(*backend_)) {
  for (int64_t slot = options.max_sequences - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

absl::Status Engine::CheckShape(const GenerationRequest& request) const {
  const model::ModelConfig& config = transformer_.config();
  const int64_t length = static_cast<int64_t>(request.prompt_ids.size());
  if (length == 0) return BadRequest("the prompt is empty");
  if (length >= config.max_position_embeddings) {
    return BadRequest(absl::StrCat("the prompt has ", length, " tokens; the context holds ",
                                   config.max_position_embeddings, ", which must leave room for an answer"));
  }
  for (int32_t id : request.prompt_ids) {
    if (id < 0 || id >= config.vocab_size) {
      return BadRequest(absl::StrCat("token id ", id, " is outside the vocabulary of ", config.vocab_size));
    }
  }
  if (request.seeds.empty() || static_cast<int64_t>(request.seeds.size()) > cache_.slots()) {
    return BadRequest(absl::StrCat(request.seeds.size(), " samples asked for, 1 to ", cache_.slots(), " fit"));
  }
  const SamplingParams& sampling = request.sampling;
  if (sampling.max_new_tokens <= 0) return BadRequest("max_new_tokens must be positive");
  if (!(sampling.temperature >= 0) || !(sampling.top_p > 0 && sampling.top_p <= 1) || sampling.top_k < 0) {
    return BadRequest(absl::StrCat("temperature ", sampling.temperature, " must be >= 0, top_p ", sampling.top_p,
                                   " in (0, 1], top_k ", sampling.top_k, " >= 0"));
  }
  return absl::OkStatus();
}

void Engine::Add(GenerationRequest request, std::shared_ptr<GenerationSink> sink) {
  if (request.holds_install) {
    waiting_.emplace_front(std::move(request), std::move(sink));
  } else {
    waiting_.emplace_back(std::move(request), std::move(sink));
  }
}

int32_t Engine::Abort(const std::string& id) {
  int32_t ended = 0;
  for (ActiveRequest& active : active_) {
    if (!id.empty() && active.request.id != id) continue;
    for (Sequence& sequence : active.sequences) {
      if (!sequence.running) continue;
      FinishSequence(active, sequence, FinishReason::kAborted);
      ++ended;
    }
  }
  RemoveFinishedRequests();
  std::deque<std::pair<GenerationRequest, std::shared_ptr<GenerationSink>>> kept;
  for (auto& [request, sink] : waiting_) {
    if (!id.empty() && request.id != id) {
      kept.emplace_back(std::move(request), std::move(sink));
      continue;
    }
    for (size_t i = 0; i < request.seeds.size(); ++i, ++ended) {
      Trajectory nothing;
      nothing.finish = FinishReason::kAborted;
      sink->OnFinished(static_cast<int32_t>(i), std::move(nothing));
    }
  }
  waiting_ = std::move(kept);
  return ended;
}

bool Engine::InstallHeld() const {
  return std::any_of(active_.begin(), active_.end(), [](const ActiveRequest& a) { return a.request.holds_install; }) ||
         std::any_of(waiting_.begin(), waiting_.end(), [](const auto& w) { return w.first.holds_install; });
}

int64_t Engine::waiting_sequences() const {
  int64_t count = 0;
  for (const auto& [request, sink] : waiting_) count += static_cast<int64_t>(request.seeds.size());
  return count;
}

void Engine::Step() {
  AdmitWaiting();
  Batch batch = BuildBatch();
  at::Tensor logits = RunForward(batch);
  const int64_t vocab_size = logits.size(1);
  const float* values = logits.data_ptr<float>();
  for (const Batch::Draw& draw : batch.draws) AppendToken(draw, values + draw.logits_row * vocab_size);
  RemoveFinishedRequests();
}

void Engine::AdmitWaiting() {
  while (!waiting_.empty() && waiting_.front().first.seeds.size() <= free_slots_.size()) {
    ActiveRequest& active = active_.emplace_back();
    active.request = std::move(waiting_.front().first);
    active.sink = std::move(waiting_.front().second);
    active.started = Clock::Real()->Now();
    waiting_.pop_front();
    for (size_t i = 0; i < active.request.seeds.size(); ++i) {
      Sequence& sequence = active.sequences.emplace_back();
      sequence.sample = static_cast<int32_t>(i);
      sequence.seed = active.request.seeds[i];
      sequence.slot = free_slots_.back();
      free_slots_.pop_back();
    }
  }
}

Engine::Batch Engine::BuildBatch() {
  Batch batch;
  int64_t prefill_budget = options_.max_prefill_tokens;
  for (ActiveRequest& active : active_) {
    if (active.prefilling()) {
      AddPrefillRows(active, prefill_budget, batch);
      continue;
    }
    const int64_t prompt_length = static_cast<int64_t>(active.request.prompt_ids.size());
    for (Sequence& sequence : active.sequences) {
      if (!sequence.running) continue;
      const std::vector<int32_t>& tokens = sequence.trajectory.tokens;
      batch.draws.push_back({&active, &sequence, static_cast<int64_t>(batch.sampled_rows.size())});
      batch.sampled_rows.push_back(static_cast<int64_t>(batch.rows.size()));
      batch.ids.push_back(tokens.back());
      batch.rows.push_back({sequence.slot, prompt_length + static_cast<int64_t>(tokens.size()) - 1});
    }
  }
  return batch;
}

void Engine::AddPrefillRows(ActiveRequest& active, int64_t& budget, Batch& batch) {
  const std::vector<int32_t>& prompt = active.request.prompt_ids;
  const int64_t length = static_cast<int64_t>(prompt.size());
  const int64_t end = std::min(length, active.prefilled + budget);
  budget -= end - active.prefilled;
  prefilled_tokens_ += end - active.prefilled;
  for (; active.prefilled < end; ++active.prefilled) {
    batch.ids.push_back(prompt[active.prefilled]);
    batch.rows.push_back({active.sequences[0].slot, active.prefilled});
  }
  if (active.prefilling()) return;
  batch.prefilled.push_back(&active);
  // All samples draw their first token from the logits of the prompt's last token.
  const int64_t logits_row = static_cast<int64_t>(batch.sampled_rows.size());
  batch.sampled_rows.push_back(static_cast<int64_t>(batch.rows.size()) - 1);
  for (Sequence& sequence : active.sequences) batch.draws.push_back({&active, &sequence, logits_row});
}

void Engine::PadBatch(Batch& batch) const {
  while (static_cast<int64_t>(batch.rows.size()) < model::Transformer::kMinRows) {
    batch.ids.push_back(0);
    batch.rows.push_back({cache_.scratch_slot(), 0});
  }
  while (static_cast<int64_t>(batch.sampled_rows.size()) < model::Transformer::kMinRows) {
    batch.sampled_rows.push_back(0);
  }
}

at::Tensor Engine::RunForward(Batch& batch) {
  c10::InferenceMode inference;
  PadBatch(batch);
  const at::Device device = backend_->device();
  std::vector<int64_t> positions;
  positions.reserve(batch.rows.size());
  for (const RowPlace& row : batch.rows) positions.push_back(row.position);
  auto attention = backend_->MakeAttention(cache_, std::move(batch.rows));
  at::Tensor hidden =
      transformer_.Forward(policy_.weights(), OnDevice(batch.ids, device), OnDevice(positions, device), *attention);
  at::Tensor sampled = hidden.index_select(0, OnDevice(batch.sampled_rows, device));
  at::Tensor logits = transformer_.Logits(policy_.weights(), sampled);
  ForkPrefilled(batch);
  return logits.contiguous().to(at::kCPU);
}

void Engine::ForkPrefilled(const Batch& batch) {
  for (const ActiveRequest* active : batch.prefilled) {
    std::vector<int64_t> others;
    for (size_t i = 1; i < active->sequences.size(); ++i) others.push_back(active->sequences[i].slot);
    cache_.Fork(active->sequences[0].slot, others, active->prefilled);
  }
}

void Engine::Synchronize() const {
  if (stream_.has_value()) stream_->Synchronize();
}

void Engine::AppendToken(const Batch::Draw& draw, const float* logits) {
  Trajectory& trajectory = draw.sequence->trajectory;
  const int32_t position = static_cast<int32_t>(trajectory.tokens.size());
  const SampledToken drawn = SampleToken(logits, transformer_.config().vocab_size, draw.request->request.sampling,
                                         draw.sequence->seed, position);
  trajectory.tokens.push_back(drawn.token);
  trajectory.logprobs.push_back(drawn.logprob);
  if (trajectory.spans.empty() || trajectory.spans.back().version != policy_.version()) {
    trajectory.spans.push_back({policy_.version(), position, position});
  }
  trajectory.spans.back().end = position + 1;
  ++generated_tokens_;
  draw.request->sink->OnToken(draw.sequence->sample, drawn.token, drawn.logprob, policy_.version());
  std::optional<FinishReason> reason = Finished(*draw.request, *draw.sequence);
  if (reason.has_value()) FinishSequence(*draw.request, *draw.sequence, *reason);
}

std::optional<FinishReason> Engine::Finished(const ActiveRequest& active, const Sequence& sequence) const {
  const SamplingParams& sampling = active.request.sampling;
  const std::vector<int32_t>& tokens = sequence.trajectory.tokens;
  const auto& stops = sampling.stop_token_ids;
  if (std::find(stops.begin(), stops.end(), tokens.back()) != stops.end()) return FinishReason::kStop;
  const int64_t length = static_cast<int64_t>(active.request.prompt_ids.size() + tokens.size());
  if (static_cast<int32_t>(tokens.size()) >= sampling.max_new_tokens ||
      length >= transformer_.config().max_position_embeddings) {
    return FinishReason::kLength;
  }
  return std::nullopt;
}

void Engine::FinishSequence(ActiveRequest& active, Sequence& sequence, FinishReason reason) {
  sequence.running = false;
  free_slots_.push_back(sequence.slot);
  sequence.trajectory.finish = reason;
  sequence.trajectory.generate_seconds = absl::ToDoubleSeconds(Clock::Real()->Now() - active.started);
  active.sink->OnFinished(sequence.sample, std::move(sequence.trajectory));
}

void Engine::RemoveFinishedRequests() {
  active_.remove_if([](const ActiveRequest& active) {
    return std::none_of(active.sequences.begin(), active.sequences.end(), [](const Sequence& s) { return s.running; });
  });
}

}  // namespace syncopate::rollouter
