#pragma once

#include <cuda.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/file_descriptor.h"
#include "cuda/driver.h"

// CUDA virtual memory in its two halves: memory without an address, and addresses without memory. Nothing here is
// thread-safe; owners lock.
namespace syncopate::cuda {

// Memory that another process may map, as it travels over a Unix socket: the numbers as bytes, the descriptors beside
// them. The receiving process trusts the numbers only as far as the driver confirms them.
struct ExportedMemory {
  uint64_t id = 0;                  // names the memory: see GpuMemoryBlock::id
  std::vector<int64_t> chunks;      // bytes of each part, in the order of their addresses
  std::vector<FileDescriptor> fds;  // one a chunk
};

// Physical memory of one GPU in one or several parts. It lives as long as this object, any mapping of it in any
// process, or an exported descriptor.
class GpuMemoryBlock {
 public:
  // At least `bytes`, rounded up to what the GPU can map; in one part if `chunk_bytes` is 0, else in parts of that
  // size, rounded up too. `what` ("the shadow arena") is named in errors: RESOURCE_EXHAUSTED reason OUT_OF_GPU_MEMORY
  // with the numbers, FAILED_PRECONDITION reason NO_GPU.
  // `driver`: whose calls to use, borrowed for ever; nullptr for the process's own.
  static absl::StatusOr<GpuMemoryBlock> Create(int device, int64_t bytes, int64_t chunk_bytes, const std::string& what,
                                               const Driver* driver = nullptr);
  // Memory that some process exported; the descriptors are used, not kept. INVALID_ARGUMENT reason BAD_MEMORY_EXPORT
  // unless they are as many as the chunks and a driver's.
  static absl::StatusOr<GpuMemoryBlock> Import(const ExportedMemory& exported);

  ~GpuMemoryBlock();
  GpuMemoryBlock(GpuMemoryBlock&& other) noexcept;
  GpuMemoryBlock& operator=(GpuMemoryBlock&& other) noexcept;

  // Random, drawn when the memory was made; the same in every process that imports it, never used again. So a mapping
  // can be cached by it, and two arenas that exchanged their memory are told apart.
  uint64_t id() const { return id_; }
  int64_t bytes() const { return bytes_; }  // as mapped: rounded up
  // Fresh descriptors at each call.
  absl::StatusOr<ExportedMemory> Export() const;

 private:
  friend class AddressRange;
  struct Chunk {
    CUmemGenericAllocationHandle handle;
    int64_t bytes;
  };

  GpuMemoryBlock(const Driver* driver, uint64_t id) : driver_(driver), id_(id) {}

  const Driver* driver_;
  uint64_t id_;
  int64_t bytes_ = 0;
  std::vector<Chunk> chunks_;
};

// A fixed range of addresses, at which one block of memory is mapped at a time, or none.
class AddressRange {
 public:
  // Reserves addresses for blocks of up to `bytes`. Costs no memory. `driver` as above.
  static absl::StatusOr<AddressRange> Reserve(int64_t bytes, const Driver* driver = nullptr);
  ~AddressRange();  // unmaps
  AddressRange(AddressRange&& other) noexcept;
  AddressRange& operator=(AddressRange&& other) noexcept;

  char* data() const { return reinterpret_cast<char*>(address_); }

  // Maps `block` here, readable and writable by `device`, be it the one that has the memory or one with peer access to
  // it (else NO_PEER_ACCESS or CUDA_ERROR). Nothing may be mapped. After an error nothing is mapped. The block may be
  // destroyed before the mapping is.
  absl::Status Map(const GpuMemoryBlock& block, int device);
  // All work on these addresses must have ended. Nothing if nothing is mapped.
  absl::Status Unmap();
  bool mapped() const { return !mapped_.empty(); }

 private:
  AddressRange(const Driver* driver, CUdeviceptr address, int64_t bytes)
      : driver_(driver), address_(address), reserved_bytes_(bytes) {}
  absl::Status MapChunks(const GpuMemoryBlock& block, int device);

  const Driver* driver_;
  CUdeviceptr address_;
  int64_t reserved_bytes_;
  std::vector<int64_t> mapped_;  // bytes of the chunks that are mapped, in the order of their addresses
};

}  // namespace syncopate::cuda
