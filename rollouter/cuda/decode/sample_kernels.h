#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

// Kernels that draw tokens from rows of logits, as SampleToken (rollouter/engine/sampler.h) does on the CPU. The logits
// are read once, and a part of them again. Launches queue the work, return, and are chained
// (model/cuda/device_code.cuh).
namespace syncopate::rollouter {

constexpr int32_t kMaxStopTokens = 8;

// The sampling settings of a slot.
struct SlotSampling {
  uint64_t seed = 0;
  float inverse_temperature = 1;  // 0: greedy, the lowest index among equals; its log-probability is at temperature 1
  int32_t stops = 0;              // the number of valid entries of stop_tokens
  int32_t stop_tokens[kMaxStopTokens] = {};
};

// The draws of a step. Draw d draws token number numbers[d] of the sequence in slots[d], with PhiloxUniform(seed,
// number), from logits row logits_rows[d], or from row d if logits_rows is null.
struct Draws {
  const int32_t* slots = nullptr;
  const int32_t* numbers = nullptr;
  const int32_t* logits_rows = nullptr;
  int32_t count = 0;
};

struct Drawn {
  int32_t token = 0;
  // The log-probability under softmax(logits / temperature) over the whole vocabulary. NaN, with token 0, if the logits
  // are not finite numbers.
  float logprob = 0;
  int32_t stopped = 0;  // 1 if the token is one of the slot's stop tokens
};

struct LogitsShape {
  int32_t vocab = 0;
  int32_t stride = 0;    // elements from row to row, a multiple of 8
  bool float32 = false;  // else bf16
};

// The bytes of scratch memory that Sample needs.
int64_t SampleScratchBytes(int32_t draws, int32_t vocab);

// Writes results[d], and tokens[slot of d] for the next step to read. `sampling` is indexed by slot. INVALID_VALUE for
// a vocabulary above 2^19.
cudaError_t Sample(const LogitsShape& shape, const void* logits, const Draws& draws, const SlotSampling* sampling,
                   void* scratch, Drawn* results, int32_t* tokens, cudaStream_t stream);

}  // namespace syncopate::rollouter
