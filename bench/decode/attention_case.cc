#include "bench/decode/attention_case.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "base/status.h"
#include "bench/decode/random_fill.h"
#include "bench/measure/figures.h"
#include "cuda/cuda_status.h"
#include "cuda/driver.h"
#include "model/cuda/cuda_graph.h"
#include "rollouter/cuda/decode/paged_attention.h"

namespace syncopate::bench {
namespace {

using cuda::CudaStatus;
using cuda::DeviceBuffer;
using rollouter::AttentionScratch;
using rollouter::PagedRows;

template <typename T>
absl::StatusOr<DeviceBuffer> Upload(const std::vector<T>& values) {
  const int64_t bytes = static_cast<int64_t>(values.size() * sizeof(T));
  SYNCOPATE_ASSIGN_OR_RETURN(DeviceBuffer buffer, DeviceBuffer::Create(0, bytes, "a benchmark's table"));
  SYNCOPATE_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpy(buffer.data(), values.data(), static_cast<size_t>(bytes), cudaMemcpyHostToDevice), "copying a table"));
  return buffer;
}

absl::StatusOr<DeviceBuffer> Zeros(int64_t bytes) { return Upload(std::vector<char>(static_cast<size_t>(bytes))); }

}  // namespace

std::vector<int32_t> ShuffledTables(const rollouter::BlockStorage& storage, int32_t rows, int32_t context) {
  const size_t each = static_cast<size_t>((context + rollouter::kTokensPerBlock - 1) / rollouter::kTokensPerBlock);
  std::vector<int32_t> blocks(static_cast<size_t>(storage.layer_pieces));
  std::iota(blocks.begin(), blocks.end(), 0);
  // In a running engine the blocks of a sequence are scattered over the storage: blocks in order would be read like one
  // array, faster than in reality.
  std::shuffle(blocks.begin(), blocks.end(), std::mt19937(1));
  SYNCOPATE_CHECK(blocks.size() >= each * static_cast<size_t>(rows));
  blocks.resize(each * static_cast<size_t>(rows));
  return blocks;
}

absl::StatusOr<double> TimeAttention(const NamedShape& named, const RandomModel& model, int32_t rows, int32_t context,
                                     int repeats) {
  const rollouter::HeadCounts& heads = named.shape.heads;
  const std::vector<int32_t> host_tables = ShuffledTables(model.storage(), rows, context);
  int multiprocessors = 0;
  SYNCOPATE_RETURN_IF_ERROR(CudaStatus(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0),
                                       "asking for the GPU's size"));
  const int32_t grid = rollouter::AttentionGrid(multiprocessors);
  const rollouter::AttentionScratchBytes bytes = rollouter::ScratchBytes(heads, rows, grid);
  std::vector<int32_t> host_slots(static_cast<size_t>(rows));
  std::iota(host_slots.begin(), host_slots.end(), 0);
  SYNCOPATE_ASSIGN_OR_RETURN(const DeviceBuffer tables, Upload(host_tables));
  SYNCOPATE_ASSIGN_OR_RETURN(const DeviceBuffer slots, Upload(host_slots));
  SYNCOPATE_ASSIGN_OR_RETURN(const DeviceBuffer lengths,
                             Upload(std::vector<int32_t>(static_cast<size_t>(rows), context)));
  SYNCOPATE_ASSIGN_OR_RETURN(const DeviceBuffer row_tiles, Zeros(bytes.row_tiles));
  SYNCOPATE_ASSIGN_OR_RETURN(const DeviceBuffer pieces, Zeros(bytes.pieces));
  SYNCOPATE_ASSIGN_OR_RETURN(const DeviceBuffer parts, Zeros(bytes.parts));
  SYNCOPATE_ASSIGN_OR_RETURN(const DeviceBuffer arrivals, Zeros(bytes.arrivals));
  const int64_t elements = int64_t{rows} * named.shape.query_size();
  SYNCOPATE_ASSIGN_OR_RETURN(const DeviceBuffer queries, Zeros(2 * elements));
  SYNCOPATE_ASSIGN_OR_RETURN(const DeviceBuffer out, Zeros(2 * elements));
  // Not zeros: a GPU runs faster, and cooler, on zeros.
  SYNCOPATE_RETURN_IF_ERROR(CudaStatus(FillNormal(queries.data(), elements, 0, 1, 7, nullptr), "drawing queries"));
  SYNCOPATE_ASSIGN_OR_RETURN(const cuda::Driver* driver, cuda::Driver::Load());
  rollouter::StorageMaps maps;
  SYNCOPATE_RETURN_IF_ERROR(cuda::DriverStatus(
      rollouter::DescribeStorage(driver->encode_tensor_map, model.storage(), heads, &maps), "describing the blocks"));
  SYNCOPATE_RETURN_IF_ERROR(CudaStatus(rollouter::PrepareAttention(heads), "loading the attention kernel"));
  SYNCOPATE_ASSIGN_OR_RETURN(const cuda::Stream stream, cuda::Stream::Create(0));
  SYNCOPATE_RETURN_IF_ERROR(CudaStatus(cudaDeviceSynchronize(), "drawing queries"));

  const PagedRows paged = {slots.as<int32_t>(), lengths.as<int32_t>(), tables.as<int32_t>(),
                           (context + rollouter::kTokensPerBlock - 1) / rollouter::kTokensPerBlock, rows};
  const AttentionScratch scratch = {row_tiles.as<int32_t>(), pieces.as<int4>(), parts.as<float>(),
                                    arrivals.as<int32_t>()};
  SYNCOPATE_RETURN_IF_ERROR(
      CudaStatus(rollouter::PlanAttention(paged, heads, grid, rollouter::Cuts::kAnywhere, scratch, stream.get()),
                 "planning attention"));
  SYNCOPATE_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(stream.get()), "planning attention"));
  // All layers, because each reads its own keys: repeating one layer would read from the cache.
  auto all_layers = [&]() -> absl::Status {
    for (int32_t layer = 0; layer < named.shape.layers; ++layer) {
      SYNCOPATE_RETURN_IF_ERROR(CudaStatus(
          rollouter::AttendPaged(paged, heads, maps, model.storage(), layer, grid, scratch, queries.data(), out.data(),
                                 rollouter::RowsOf::kDifferentSequences, rollouter::Cuts::kAnywhere, stream.get()),
          "attending"));
    }
    return absl::OkStatus();
  };
  // Once outside the graph: the first launch of a kernel loads it, which is not allowed in a capture.
  SYNCOPATE_RETURN_IF_ERROR(all_layers());
  SYNCOPATE_ASSIGN_OR_RETURN(const model::CudaGraph graph, model::CudaGraph::Capture(stream.get(), all_layers));
  // The first launch uploads the graph.
  SYNCOPATE_RETURN_IF_ERROR(graph.TimeLaunch(stream.get()).status());
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    SYNCOPATE_ASSIGN_OR_RETURN(const double one, graph.TimeLaunch(stream.get(), /*launches=*/10));
    seconds.push_back(one);
  }
  return Median(seconds);
}

}  // namespace syncopate::bench
