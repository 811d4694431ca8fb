#include "cuda/gpu_memory.h"

#include <sys/random.h>

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "cuda/cuda_status.h"
#include "cuda/device.h"

namespace syncopate::cuda {
namespace {

// The driver's granularity on every supported GPU; reserved addresses of any process are multiples of it.
constexpr int64_t kAddressGranularity = 2 << 20;

constexpr int64_t RoundUp(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }

CUmemAllocationProp GetProperties(int device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  return properties;
}

// An id that names memory in all processes that map it. Addresses and handles cannot: each process has its own, and
// they are reused.
uint64_t RandomId() {
  uint64_t id = 0;
  SYNCOPATE_CHECK(getrandom(&id, sizeof(id), 0) == sizeof(id));  // up to 256 bytes are filled all or not at all
  return id;
}

}  // namespace

absl::StatusOr<GpuMemoryBlock> GpuMemoryBlock::Create(int device, int64_t bytes, int64_t chunk_bytes,
                                                      const std::string& what, const Driver* driver) {
  SYNCOPATE_RETURN_IF_ERROR(CheckGpu(device));
  if (bytes <= 0 || chunk_bytes < 0) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_OPTIONS",
                 absl::StrCat(what, " of ", bytes, " bytes in parts of ", chunk_bytes, ": both must be positive"));
  }
  if (driver == nullptr) {
    SYNCOPATE_ASSIGN_OR_RETURN(driver, Driver::Load());
  }
  DeviceScope scope(device);
  const CUmemAllocationProp properties = GetProperties(device);
  size_t granularity = 0;
  SYNCOPATE_RETURN_IF_ERROR(
      DriverStatus(driver->granularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED), what));
  const int64_t whole = RoundUp(bytes, static_cast<int64_t>(granularity));
  // With chunks the memory can be freed and found piece by piece, even if no single large block is free.
  const int64_t part = chunk_bytes == 0 ? whole : RoundUp(chunk_bytes, static_cast<int64_t>(granularity));

  GpuMemoryBlock block(driver, RandomId());
  while (block.bytes_ < whole) {
    const int64_t size = std::min(part, whole - block.bytes_);
    CUmemGenericAllocationHandle handle = 0;
    CUresult result = driver->create(&handle, static_cast<size_t>(size), &properties, 0);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
      block = GpuMemoryBlock(driver, 0);  // frees the chunks taken so far, so that the message counts them as free
      return OutOfGpuMemory(device, whole, what);
    }
    SYNCOPATE_RETURN_IF_ERROR(DriverStatus(result, what));
    block.chunks_.push_back({handle, size});
    block.bytes_ += size;
  }
  return block;
}

absl::StatusOr<GpuMemoryBlock> GpuMemoryBlock::Import(const ExportedMemory& exported) {
  auto bad = [](const std::string& words) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_MEMORY_EXPORT", words);
  };
  if (exported.chunks.empty() || exported.chunks.size() != exported.fds.size()) {
    return bad(
        absl::StrCat(exported.chunks.size(), " chunks of GPU memory with ", exported.fds.size(), " descriptors"));
  }
  SYNCOPATE_ASSIGN_OR_RETURN(const Driver* driver, Driver::Load());
  GpuMemoryBlock block(driver, exported.id);
  for (size_t i = 0; i < exported.chunks.size(); ++i) {
    // Checks the sizes, because they come from another process: the driver checks handles only.
    if (exported.chunks[i] <= 0 || exported.chunks[i] % kAddressGranularity != 0) {
      return bad(absl::StrCat("a chunk of ", exported.chunks[i], " bytes"));
    }
    CUmemGenericAllocationHandle handle = 0;
    CUresult result =
        driver->import_handle(&handle, reinterpret_cast<void*>(static_cast<intptr_t>(exported.fds[i].get())),
                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (result == CUDA_ERROR_INVALID_VALUE) return bad("the descriptor is not one of GPU memory");
    SYNCOPATE_RETURN_IF_ERROR(DriverStatus(result, "importing another process's GPU memory"));
    block.chunks_.push_back({handle, exported.chunks[i]});
    block.bytes_ += exported.chunks[i];
  }
  return block;
}

GpuMemoryBlock::~GpuMemoryBlock() {
  for (const Chunk& chunk : chunks_) driver_->release(chunk.handle);
}

GpuMemoryBlock::GpuMemoryBlock(GpuMemoryBlock&& other) noexcept
    : driver_(other.driver_),
      id_(other.id_),
      bytes_(std::exchange(other.bytes_, 0)),
      chunks_(std::exchange(other.chunks_, {})) {}

GpuMemoryBlock& GpuMemoryBlock::operator=(GpuMemoryBlock&& other) noexcept {
  GpuMemoryBlock taken(std::move(other));
  std::swap(driver_, taken.driver_);
  std::swap(id_, taken.id_);
  std::swap(bytes_, taken.bytes_);
  std::swap(chunks_, taken.chunks_);
  return *this;
}

absl::StatusOr<ExportedMemory> GpuMemoryBlock::Export() const {
  ExportedMemory exported;
  exported.id = id_;
  for (const Chunk& chunk : chunks_) {
    int fd = -1;
    SYNCOPATE_RETURN_IF_ERROR(
        DriverStatus(driver_->export_handle(&fd, chunk.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                     "exporting GPU memory"));
    exported.fds.emplace_back(fd);
    exported.chunks.push_back(chunk.bytes);
  }
  return exported;
}

absl::StatusOr<AddressRange> AddressRange::Reserve(int64_t bytes, const Driver* driver) {
  if (driver == nullptr) {
    SYNCOPATE_ASSIGN_OR_RETURN(driver, Driver::Load());
  }
  const int64_t whole = RoundUp(bytes, kAddressGranularity);
  CUdeviceptr address = 0;
  SYNCOPATE_RETURN_IF_ERROR(
      DriverStatus(driver->reserve(&address, static_cast<size_t>(whole), 0, 0, 0), "reserving GPU addresses"));
  return AddressRange(driver, address, whole);
}

AddressRange AddressRange::Part(int64_t offset, int64_t bytes) const {
  const int64_t whole = RoundUp(bytes, kAddressGranularity);
  SYNCOPATE_CHECK(offset % kAddressGranularity == 0 && offset + whole <= reserved_bytes_);
  AddressRange part(driver_, address_ + static_cast<CUdeviceptr>(offset), whole);
  part.is_part_ = true;
  return part;
}

AddressRange::~AddressRange() {
  if (address_ == 0) return;
  Unmap().IgnoreError();  // the mapping ends with the process anyway
  if (is_part_) return;
  driver_->free_reservation(address_, static_cast<size_t>(reserved_bytes_));
}

AddressRange::AddressRange(AddressRange&& other) noexcept
    : driver_(other.driver_),
      address_(std::exchange(other.address_, 0)),
      reserved_bytes_(other.reserved_bytes_),
      is_part_(other.is_part_),
      mapped_(std::exchange(other.mapped_, {})) {}

AddressRange& AddressRange::operator=(AddressRange&& other) noexcept {
  AddressRange taken(std::move(other));
  std::swap(driver_, taken.driver_);
  std::swap(address_, taken.address_);
  std::swap(reserved_bytes_, taken.reserved_bytes_);
  std::swap(is_part_, taken.is_part_);
  std::swap(mapped_, taken.mapped_);
  return *this;
}

absl::Status AddressRange::Map(const GpuMemoryBlock& block, int device) {
  SYNCOPATE_CHECK(!mapped());
  return MapBehind(block, device);
}

absl::Status AddressRange::MapBehind(const GpuMemoryBlock& block, int device) {
  SYNCOPATE_CHECK(std::accumulate(mapped_.begin(), mapped_.end(), block.bytes()) <= reserved_bytes_);
  absl::Status status = MapChunks(block, device);
  // Unmaps the chunks that were mapped before the failure: all is mapped, or nothing.
  if (!status.ok()) Unmap().IgnoreError();
  return status;
}

absl::Status AddressRange::MapChunks(const GpuMemoryBlock& block, int device) {
  const CUdeviceptr begin = std::accumulate(mapped_.begin(), mapped_.end(), address_);
  CUdeviceptr at = begin;
  for (const GpuMemoryBlock::Chunk& chunk : block.chunks_) {
    SYNCOPATE_RETURN_IF_ERROR(
        DriverStatus(driver_->map(at, static_cast<size_t>(chunk.bytes), 0, chunk.handle, 0), "mapping GPU memory"));
    mapped_.push_back(chunk.bytes);
    at += static_cast<CUdeviceptr>(chunk.bytes);
  }
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CUresult result = driver_->set_access(begin, at - begin, &access, 1);
  if (result == CUDA_ERROR_INVALID_DEVICE || result == CUDA_ERROR_NOT_SUPPORTED) {
    return Error(
        absl::StatusCode::kFailedPrecondition, "NO_PEER_ACCESS",
        absl::StrCat("GPU ", device, " cannot reach this memory of another GPU; use the nccl or the grpc transport"));
  }
  return DriverStatus(result, absl::StrCat("giving GPU ", device, " access to mapped memory"));
}

absl::Status AddressRange::Unmap() {
  CUdeviceptr end = address_;
  for (int64_t bytes : mapped_) end += static_cast<CUdeviceptr>(bytes);
  // Mappings must be ended as they were made: chunk by chunk.
  while (!mapped_.empty()) {
    end -= static_cast<CUdeviceptr>(mapped_.back());
    SYNCOPATE_RETURN_IF_ERROR(
        DriverStatus(driver_->unmap(end, static_cast<size_t>(mapped_.back())), "unmapping GPU memory"));
    mapped_.pop_back();
  }
  return absl::OkStatus();
}

}  // namespace syncopate::cuda
