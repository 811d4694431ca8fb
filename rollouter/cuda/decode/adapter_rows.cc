#include "rollouter/cuda/decode/adapter_rows.h"

#include <vector>

#include "base/status.h"
#include "cuda/cuda_status.h"

namespace syncopate::rollouter {
namespace {

constexpr int64_t kElementBytes = 2;

// Adds the copies for one matrix [n, k] of a layer.
void ListCopies(const void* matrix, int64_t n, int64_t k, const std::vector<AdapterColumns>& adapters, int64_t rank,
                int32_t set, int32_t place, std::vector<AdapterCopy>& copies) {
  const int64_t bytes = rank * k * kElementBytes;
  const auto count = static_cast<int64_t>(adapters.size());
  char* to = static_cast<char*>(const_cast<void*>(matrix)) + n * k * kElementBytes + place * count * bytes;
  for (const AdapterColumns& adapter : adapters) {
    copies.push_back({adapter.a[set], to, bytes});
    to += bytes;
  }
}

}  // namespace

absl::StatusOr<AdapterRows> AdapterRows::Create(int device, const DecodeShape& shape, const DecodeWeights& weights) {
  AdapterRows rows;
  if (shape.adapter_rank == 0) return rows;
  std::vector<AdapterCopy> copies;
  for (int32_t set = 0; set < kDecodedAdapterSets; ++set) {
    for (int32_t place = 0; place < kAdapterPlaces; ++place) {
      const auto add = [&](const void* matrix, int64_t n, int64_t k, const std::vector<AdapterColumns>& adapters) {
        ListCopies(matrix, n, k, adapters, shape.adapter_rank, set, place, copies);
      };
      for (const DecodeLayer& layer : weights.layers) {
        add(layer.qkv, shape.qkv_size(), shape.hidden, layer.qkv_adapters);
        add(layer.output, shape.hidden, shape.query_size(), layer.output_adapters);
        add(layer.gate_up, 2 * int64_t{shape.intermediate}, shape.hidden, layer.gate_up_adapters);
        add(layer.down, shape.hidden, shape.intermediate, layer.down_adapters);
      }
    }
  }
  rows.count_ = static_cast<int32_t>(copies.size()) / (kDecodedAdapterSets * kAdapterPlaces);
  const auto bytes = static_cast<int64_t>(copies.size() * sizeof(AdapterCopy));
  SYNCOPATE_ASSIGN_OR_RETURN(rows.copies_, cuda::DeviceBuffer::Create(device, bytes, "the list of adapters' places"));
  SYNCOPATE_RETURN_IF_ERROR(cuda::CudaStatus(
      cudaMemcpy(rows.copies_.data(), copies.data(), static_cast<size_t>(bytes), cudaMemcpyHostToDevice),
      "listing the places of adapters"));
  return rows;
}

absl::Status AdapterRows::Queue(int32_t set, int32_t place, cudaStream_t stream) const {
  SYNCOPATE_CHECK(count_ > 0 && set >= 0 && set < kDecodedAdapterSets && place >= 0 && place < kAdapterPlaces);
  const int64_t first = int64_t{set * kAdapterPlaces + place} * count_;
  return cuda::CudaStatus(CopyAdapters(copies_.as<AdapterCopy>() + first, count_, stream), "placing adapters");
}

}  // namespace syncopate::rollouter
