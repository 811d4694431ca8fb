#include "rollouter/cuda/slot_filters.h"

#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "base/status.h"
#include "cuda/cuda_status.h"
#include "rollouter/engine/sampler.h"

namespace syncopate::rollouter {
namespace {

using cuda::CudaStatus;
using cuda::DeviceBuffer;

constexpr float kNever = -std::numeric_limits<float>::infinity();

}  // namespace

absl::StatusOr<std::unique_ptr<SlotFilters::Lent>> SlotFilters::Lend(const SlotStart& start, cudaStream_t stream) {
  const SamplingParams& sampling = *start.sampling;
  if (sampling.DrawsFromThePolicy()) return nullptr;
  auto lent = std::make_unique<Lent>();
  lent->filter = {.repetition_penalty = sampling.repetition_penalty,
                  .presence_penalty = sampling.presence_penalty,
                  .frequency_penalty = sampling.frequency_penalty,
                  .min_p = sampling.min_p,
                  .top_k = sampling.top_k,
                  .top_p = sampling.top_p};
  if (!sampling.allowed_token_ids.empty() || !sampling.logit_bias.empty()) {
    SYNCOPATE_ASSIGN_OR_RETURN(
        lent->bias, Allocate(biases_, options_.vocab * int64_t{sizeof(float)}, "biases of a sequence's logits"));
    float* const bias = biases_.buffers[static_cast<size_t>(lent->bias)].as<float>();
    lent->filter.bias = bias;
    SYNCOPATE_RETURN_IF_ERROR(GetFillBias(sampling, bias, stream));
  }
  if (NeedsCounts(sampling)) {
    SYNCOPATE_ASSIGN_OR_RETURN(
        lent->counts, Allocate(counts_, options_.vocab * int64_t{sizeof(uint16_t)}, "counts of a sequence's tokens"));
    lent->filter.counts = counts_.buffers[static_cast<size_t>(lent->counts)].as<uint16_t>();
    SYNCOPATE_RETURN_IF_ERROR(CountTokensIn(start, lent->filter.counts, stream));
  }
  return lent;
}

void SlotFilters::Return(std::unique_ptr<Lent> lent) {
  if (lent == nullptr) return;
  if (lent->bias >= 0) biases_.free.push_back(lent->bias);
  if (lent->counts >= 0) counts_.free.push_back(lent->counts);
}

absl::StatusOr<int64_t> SlotFilters::Allocate(Pool& pool, int64_t bytes, const char* what) const {
  if (pool.free.empty()) {
    SYNCOPATE_ASSIGN_OR_RETURN(DeviceBuffer buffer, DeviceBuffer::Create(options_.device, bytes, what));
    pool.free.push_back(static_cast<int64_t>(pool.buffers.size()));
    pool.buffers.push_back(std::move(buffer));
  }
  const int64_t place = pool.free.back();
  pool.free.pop_back();
  return place;
}

absl::Status SlotFilters::Copy(const void* from, int64_t bytes, cudaStream_t stream) {
  if (scratch_.data() == nullptr) {
    const int64_t most =
        std::max(options_.vocab * int64_t{sizeof(BiasEntry)}, 2 * options_.max_context * int64_t{sizeof(int32_t)});
    SYNCOPATE_ASSIGN_OR_RETURN(scratch_, DeviceBuffer::Create(options_.device, most, "lists of tokens"));
  }
  SYNCOPATE_CHECK(bytes <= scratch_.bytes());
  // Memory that is not page-locked: it has been read when the call returns.
  return CudaStatus(cudaMemcpyAsync(scratch_.data(), from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream),
                    "copying a list of tokens");
}

absl::Status SlotFilters::GetFillBias(const SamplingParams& sampling, float* bias, cudaStream_t stream) {
  const bool all = sampling.allowed_token_ids.empty();
  std::map<int32_t, float> changed;
  for (int32_t token : sampling.allowed_token_ids) changed[token] = 0;
  for (const TokenBias& more : sampling.logit_bias) {
    if (all || changed.count(more.token) > 0) changed[more.token] += more.bias;
  }
  std::vector<BiasEntry> entries;
  for (const auto& [token, value] : changed) entries.push_back({token, value});
  SYNCOPATE_RETURN_IF_ERROR(Copy(entries.data(), static_cast<int64_t>(entries.size() * sizeof(BiasEntry)), stream));
  return CudaStatus(FillBias(scratch_.as<BiasEntry>(), static_cast<int32_t>(entries.size()), all ? 0 : kNever,
                             options_.vocab, bias, stream),
                    "filling biases");
}

absl::Status SlotFilters::CountTokensIn(const SlotStart& start, uint16_t* counts, cudaStream_t stream) {
  std::vector<int32_t> tokens = *start.prompt;
  tokens.insert(tokens.end(), start.drawn.begin(), start.drawn.end());
  SYNCOPATE_RETURN_IF_ERROR(Copy(tokens.data(), static_cast<int64_t>(tokens.size() * sizeof(int32_t)), stream));
  return CudaStatus(CountTokens(scratch_.as<int32_t>(), static_cast<int32_t>(start.prompt->size()),
                                static_cast<int32_t>(start.drawn.size()), options_.vocab, counts, stream),
                    "counting tokens");
}

}  // namespace syncopate::rollouter
