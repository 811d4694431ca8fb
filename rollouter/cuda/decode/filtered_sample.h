#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "rollouter/cuda/decode/sample_kernels.h"

// Draws that want more than a temperature: what SampleToken (rollouter/engine/sampler.h) does with every other field of
// SamplingParams, as a kernel. Launches queue, return, and are chained (model/cuda/device_code.cuh).
namespace syncopate::rollouter {

// What changes a sequence's logits, in the order of the fields, and what is cut off then.
struct DrawFilter {
  const float* bias = nullptr;  // [vocab], device memory: added; -inf where a token is not allowed. nullptr: none
  // [vocab], device memory: how often the token stands in the answer, and kInPrompt if it stands in the prompt; a draw
  // counts its token. nullptr: no penalties.
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

// Replaces draw `draw` of a pass: see Draws.
struct FilteredDraw {
  DrawFilter filter;
  int32_t draw = 0;
  int32_t slot = 0;
  int32_t number = 0;
  int32_t logits_row = 0;
};

// results[draw] and tokens[slot] of each; `list` is read by the device. Sums are of integers, so that a draw has the same
// bits each time; masses below 2^-40 of the likeliest token's are none. float32 logits. INVALID_VALUE for a vocabulary
// above 2^19.
cudaError_t SampleFiltered(const LogitsShape& shape, const float* logits, const FilteredDraw* list, int32_t count,
                           const SlotSampling* sampling, Drawn* results, int32_t* tokens, cudaStream_t stream);

struct BiasEntry {
  int32_t token = 0;
  float bias = 0;
};
// bias [vocab] = `entries` (device memory, a token at most once), and `otherwise` for all other tokens.
cudaError_t FillBias(const BiasEntry* entries, int32_t count, float otherwise, int32_t vocab, float* bias,
                     cudaStream_t stream);

// counts = what `tokens` [prompt + answer] (device memory) say; the first `prompt` of them are the prompt.
cudaError_t CountTokens(const int32_t* tokens, int32_t prompt, int32_t answer, int32_t vocab, uint16_t* counts,
                        cudaStream_t stream);

}  // namespace syncopate::rollouter
