#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "rollouter/cuda/decode/sample_kernels.h"

// Kernels for draws that use more than a temperature: they apply all other fields of SamplingParams as SampleToken
// (rollouter/engine/sampler.h) does. Launches queue the work, return, and are chained (model/cuda/device_code.cuh).
namespace syncopate::rollouter {

// The changes of a sequence's logits, in the order of the fields, followed by the cut-offs.
struct DrawFilter {
  // [vocab], device memory, added to logits; -inf where a token is not allowed; nullptr: none
  const float* bias = nullptr;
  // [vocab], device memory: how often each token occurs in the answer, plus the bit kInPrompt if it occurs in the
  // prompt; a draw increments the count of its token. nullptr: no penalties.
  uint16_t* counts = nullptr;
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  float min_p = 0;
  int32_t top_k = 0;
  float top_p = 1;
};
constexpr uint16_t kInPrompt = 0x8000;
constexpr uint16_t kMostCounted = 0x7fff;

// Replaces draw number `draw` of a pass: see Draws.
struct FilteredDraw {
  DrawFilter filter;
  int32_t draw = 0;
  int32_t slot = 0;
  int32_t number = 0;
  int32_t logits_row = 0;
};

// Writes results[draw] and tokens[slot] of each entry; the device reads `list`. Sums are of integers, so a draw has the
// same bits each time; masses below 2^-40 of the likeliest token's count as 0. Logits are float32. INVALID_VALUE for a
// vocabulary above 2^19.
cudaError_t SampleFiltered(const LogitsShape& shape, const float* logits, const FilteredDraw* list, int32_t count,
                           const SlotSampling* sampling, Drawn* results, int32_t* tokens, cudaStream_t stream);

struct BiasEntry {
  int32_t token = 0;
  float bias = 0;
};
// Fills bias [vocab]: the values of `entries` (device memory, each token at most once), and `otherwise` for all other
// tokens.
cudaError_t FillBias(const BiasEntry* entries, int32_t count, float otherwise, int32_t vocab, float* bias,
                     cudaStream_t stream);

// Counts `tokens` [prompt + answer] (device memory) into `counts`; the first `prompt` of them are the prompt.
cudaError_t CountTokens(const int32_t* tokens, int32_t prompt, int32_t answer, int32_t vocab, uint16_t* counts,
                        cudaStream_t stream);

}  // namespace syncopate::rollouter
