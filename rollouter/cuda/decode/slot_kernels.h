#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "rollouter/cuda/decode/sample_kernels.h"

// The state of each slot on the device between steps: its block table and its sampling settings.
namespace syncopate::rollouter {

// Sets entry `index` of the table of `slot` to `block`.
struct TableSetting {
  int32_t slot = 0;
  int32_t index = 0;
  int32_t block = 0;
};

struct SamplingSetting {
  int32_t slot = 0;
  SlotSampling sampling;
};

struct SlotStates {
  int32_t* tables = nullptr;  // [slots, table_stride]
  int32_t table_stride = 0;
  SlotSampling* sampling = nullptr;  // [slots]
};

// Applies both lists, which are device memory. No two settings are for the same place. Queues the work, returns, and is
// chained (model/cuda/device_code.cuh).
cudaError_t ApplySettings(const TableSetting* tables, int64_t table_count, const SamplingSetting* sampling,
                          int64_t sampling_count, const SlotStates& slots, cudaStream_t stream);

}  // namespace syncopate::rollouter
