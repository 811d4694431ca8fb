#pragma once

#include <cuda.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/file_descriptor.h"
#include "cuda/driver.h"

// CUDA virtual memory: physical memory without an address, and address ranges without memory. Nothing here is
// thread-safe; owners lock.
namespace syncopate::cuda {

// Memory that another process may map, as sent over a Unix socket: numbers as bytes, descriptors as ancillary data. The
// receiving process trusts the numbers only as far as the driver confirms them.
struct ExportedMemory {
  uint64_t id = 0;                  // identifies the memory: see GpuMemoryBlock::id
  std::vector<int64_t> chunks;      // bytes of each part, in the order of their addresses
  std::vector<FileDescriptor> fds;  // one for each chunk
};

// Physical memory of one GPU in one or several parts. The memory exists as long as this object, any mapping of it in
// any process, or an exported descriptor.
class GpuMemoryBlock {
 public:
  // Allocates at least `bytes`, rounded up to the GPU's granularity; in one part if `chunk_bytes` is 0, else in parts
  // of that size, rounded up too. `what` ("the shadow arena") is named in errors: RESOURCE_EXHAUSTED reason
  // OUT_OF_GPU_MEMORY with the numbers, FAILED_PRECONDITION reason NO_GPU.
  // `driver`: the calls to use, which must live as long as the process; nullptr for the process's own.
  static absl::StatusOr<GpuMemoryBlock> Create(int device, int64_t bytes, int64_t chunk_bytes, const std::string& what,
                                               const Driver* driver = nullptr);
  // Imports memory that some process exported; `exported` keeps its descriptors. INVALID_ARGUMENT reason
  // BAD_MEMORY_EXPORT unless there is one descriptor for each chunk and all are GPU memory.
  static absl::StatusOr<GpuMemoryBlock> Import(const ExportedMemory& exported);

  ~GpuMemoryBlock();
  GpuMemoryBlock(GpuMemoryBlock&& other) noexcept;
  GpuMemoryBlock& operator=(GpuMemoryBlock&& other) noexcept;

  // A random id, drawn when the memory was allocated; the same in every process that imports it, never reused. So a
  // mapping can be cached by its id, and two arenas that swapped their memory can be told apart.
  uint64_t id() const { return id_; }
  int64_t bytes() const { return bytes_; }  // as mapped: rounded up
  // Exports the memory; each call makes new descriptors.
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

// A fixed range of addresses, at which blocks of memory are mapped, one behind the other, or none.
class AddressRange {
 public:
  // Reserves addresses for blocks of up to `bytes`. Costs no memory. `driver` as in GpuMemoryBlock::Create.
  static absl::StatusOr<AddressRange> Reserve(int64_t bytes, const Driver* driver = nullptr);
  // The addresses [offset, offset + bytes) of this range, on which other memory may be mapped than on the rest. `offset`
  // is a multiple of 2 MiB. This range keeps the reservation: it must outlive its parts, and maps nothing itself.
  AddressRange Part(int64_t offset, int64_t bytes) const;
  ~AddressRange();  // unmaps
  AddressRange(AddressRange&& other) noexcept;
  AddressRange& operator=(AddressRange&& other) noexcept;

  char* data() const { return reinterpret_cast<char*>(address_); }

  // Maps `block` here, readable and writable by `device`: the GPU of the memory, or one with peer access to it (else
  // NO_PEER_ACCESS or CUDA_ERROR). No block may be mapped before, and none is after an error. The block may be
  // destroyed while it is mapped.
  absl::Status Map(const GpuMemoryBlock& block, int device);
  // Maps `block` behind what is mapped here. After an error nothing is mapped.
  absl::Status MapBehind(const GpuMemoryBlock& block, int device);
  // Ends the mapping, if there is one. All work on these addresses must have ended.
  absl::Status Unmap();
  bool mapped() const { return !mapped_.empty(); }

 private:
  AddressRange(const Driver* driver, CUdeviceptr address, int64_t bytes)
      : driver_(driver), address_(address), reserved_bytes_(bytes) {}
  absl::Status MapChunks(const GpuMemoryBlock& block, int device);

  const Driver* driver_;
  CUdeviceptr address_;
  int64_t reserved_bytes_;
  bool is_part_ = false;         // the reservation is another range's
  std::vector<int64_t> mapped_;  // bytes of the chunks that are mapped, in the order of their addresses
};

}  // namespace syncopate::cuda
