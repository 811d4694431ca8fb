#include "model/cuda/device_code.cuh"
#include "rollouter/cuda/decode/slot_kernels.h"

namespace syncopate::rollouter {
namespace {

constexpr int kThreads = 256;

__global__ void Apply(const TableSetting* tables, int64_t table_count, const SamplingSetting* sampling,
                      int64_t sampling_count, SlotStates slots) {
  model::WaitForEarlierKernels();
  model::LetNextKernelStart();
  const int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at < table_count) {
    slots.tables[static_cast<int64_t>(tables[at].slot) * slots.table_stride + tables[at].index] = tables[at].block;
  } else if (at < table_count + sampling_count) {
    const SamplingSetting& setting = sampling[at - table_count];
    slots.sampling[setting.slot] = setting.sampling;
  }
}

}  // namespace

cudaError_t ApplySettings(const TableSetting* tables, int64_t table_count, const SamplingSetting* sampling,
                          int64_t sampling_count, const SlotStates& slots, cudaStream_t stream) {
  const int64_t count = table_count + sampling_count;
  if (count == 0) return cudaSuccess;
  return model::LaunchChained(Apply, dim3(static_cast<unsigned>((count + kThreads - 1) / kThreads)), dim3(kThreads), 0,
                              stream, tables, table_count, sampling, sampling_count, slots);
}

}  // namespace syncopate::rollouter
