#include "rollouter/cuda/nccl_device_ranks.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <cstring>

#include "base/log.h"
#include "base/status.h"
#include "cuda/cuda_status.h"
#include "cuda/device.h"

namespace syncopate::rollouter {
namespace {

using cuda::CudaStatus;

// The most rows that the kernel sums over more than two ranks: for more rows NCCL is faster, because it reads each part
// once.
constexpr int32_t kMostRowsOfMany = 1024;
constexpr int64_t kPage = int64_t{2} << 20;

int64_t Aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

// What another rank needs to find this rank's memory.
struct NcclDeviceRanks::Card {
  std::array<char, 64> host = {};
  int64_t process = 0;
  int32_t device = 0;
  int32_t shared = 0;  // 1 if `handle` is valid
  uint64_t address = 0;
  cudaIpcMemHandle_t handle = {};
};

NcclDeviceRanks::~NcclDeviceRanks() {
  const cuda::DeviceScope scope(device_);
  for (void* address : opened_) cudaIpcCloseMemHandle(address);
}

absl::StatusOr<DeviceRanks::Memory> NcclDeviceRanks::MakeMemory(const Extent& extent) {
  const cuda::DeviceScope scope(device_);
  piece_bytes_ = int64_t{extent.rows} * extent.hidden * 2;
  const int64_t logits_at = Aligned(2 * piece_bytes_), flags_at = logits_at + Aligned(extent.logits_bytes);
  const int32_t rows = extent.rows + 1;  // the last row is for JoinLogits
  const int64_t flags = int64_t{4} * rows * (world() + 1);
  // The size is a multiple of a page, because memory is shared with other processes by the page.
  SYNCOPATE_ASSIGN_OR_RETURN(memory_,
                             cuda::DeviceBuffer::Create(device_, (flags_at + flags + kPage - 1) / kPage * kPage,
                                                        "sums and logits of several ranks"));
  SYNCOPATE_RETURN_IF_ERROR(
      CudaStatus(cudaMemset(memory_.data(), 0, static_cast<size_t>(memory_.bytes())), "clearing the parts of sums"));
  SYNCOPATE_ASSIGN_OR_RETURN(stop_, cuda::PinnedBuffer::Create(sizeof(int32_t)));
  SYNCOPATE_RETURN_IF_ERROR(CudaStatus(cudaDeviceSynchronize(), "clearing the parts of sums"));
  for (PeerSums& sums : sums_) {
    sums.rank = rank();
    sums.world = world();
    sums.rows_at_most = rows;
    sums.counts = reinterpret_cast<uint32_t*>(memory_.data() + flags_at) + int64_t{world()} * rows;
    sums.stop = stop_.as<int32_t>();
  }
  SYNCOPATE_ASSIGN_OR_RETURN(const bool mapped, MapPeers(flags_at));
  // Either all ranks read each other's memory or none does, because their calls must match. This exchange also ensures
  // that all ranks have cleared their memory.
  SYNCOPATE_ASSIGN_OR_RETURN(const int64_t all, AgreeOnLeast(mapped ? 1 : 0));
  reads_peers_ = all == 1;
  SYNCOPATE_LOG(kInfo, "sums over %d ranks are made by %s", world(),
                reads_peers_ ? "a kernel that reads the other GPUs' memory, and logits by all of them"
                             : "NCCL, and logits by rank 0 alone");
  Memory made{.parts = {memory_.data(), memory_.data() + piece_bytes_}, .shares_logits = reads_peers_};
  if (reads_peers_) made.logits = static_cast<char*>(const_cast<void*>(sums_[0].parts[0])) + logits_at;
  if (rank() == 0) made.logits = memory_.data() + logits_at;
  return made;
}

absl::StatusOr<bool> NcclDeviceRanks::MapPeers(int64_t flags_at) {
  Card mine;
  gethostname(mine.host.data(), mine.host.size() - 1);
  mine.process = ::getpid();
  mine.device = device_;
  mine.address = reinterpret_cast<uint64_t>(memory_.data());
  mine.shared = cudaIpcGetMemHandle(&mine.handle, memory_.data()) == cudaSuccess ? 1 : 0;
  cudaGetLastError();  // clears the error state: the failure is a normal answer
  const auto bytes = static_cast<int64_t>(sizeof(Card));
  const at::Tensor cards = at::empty({world(), bytes}, at::kByte);
  cards.zero_();
  std::memcpy(cards[rank()].data_ptr(), &mine, sizeof(Card));
  const at::Tensor shared = cards.to(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(device_)));
  SYNCOPATE_RETURN_IF_ERROR(
      group_->AllGather(static_cast<char*>(shared.data_ptr()) + rank() * bytes, shared.data_ptr(), bytes));
  SYNCOPATE_RETURN_IF_ERROR(group_->Finish());
  const at::Tensor all = shared.to(at::kCPU);
  for (int32_t peer = 0; peer < world(); ++peer) {
    Card theirs;
    std::memcpy(&theirs, static_cast<const char*>(all.data_ptr()) + peer * bytes, sizeof(Card));
    char* memory = memory_.data();
    if (peer != rank() && !MapPeer(mine, theirs, &memory)) return false;
    for (int piece = 0; piece < 2; ++piece) {
      sums_[static_cast<size_t>(piece)].parts[peer] = memory + piece * piece_bytes_;
      sums_[static_cast<size_t>(piece)].flags[peer] = reinterpret_cast<uint32_t*>(memory + flags_at);
    }
  }
  return true;
}

bool NcclDeviceRanks::MapPeer(const Card& mine, const Card& theirs, char** at) {
  if (theirs.host != mine.host) return false;
  cudaError_t mapped = cudaSuccess;
  if (theirs.process == mine.process) {
    mapped = cudaDeviceEnablePeerAccess(theirs.device, 0);
    if (mapped == cudaErrorPeerAccessAlreadyEnabled) mapped = cudaSuccess;
    *at = reinterpret_cast<char*>(theirs.address);
  } else if (theirs.shared == 1) {
    void* opened = nullptr;
    mapped = cudaIpcOpenMemHandle(&opened, theirs.handle, cudaIpcMemLazyEnablePeerAccess);
    if (mapped == cudaSuccess) opened_.push_back(opened);
    *at = static_cast<char*>(opened);
  } else {
    return false;
  }
  cudaGetLastError();
  if (mapped != cudaSuccess) {
    SYNCOPATE_LOG(kInfo, "the memory of another rank's GPU cannot be mapped: %s", cudaGetErrorString(mapped));
  }
  return mapped == cudaSuccess;
}

absl::Status NcclDeviceRanks::SumAndNorm(int which, const model::NormShape& shape, const void* weight, void* residual,
                                         void* normed, cudaStream_t stream) {
  if (reads_peers_ && (world() == 2 || shape.rows <= kMostRowsOfMany)) {
    return CudaStatus(SumPeersAndNorm(shape, sums_[static_cast<size_t>(which)], weight, residual, normed, stream),
                      "a sum over ranks");
  }
  void* const part = memory_.data() + which * piece_bytes_;
  SYNCOPATE_RETURN_IF_ERROR(group_->QueueSum(part, int64_t{shape.rows} * shape.hidden, stream));
  return CudaStatus(model::AddAndNorm(shape, part, weight, residual, normed, stream), "a norm");
}

absl::Status NcclDeviceRanks::JoinLogits(cudaStream_t stream) {
  SYNCOPATE_CHECK(reads_peers_);
  return CudaStatus(MeetPeers(sums_[0], stream), "joining logits");
}

absl::Status NcclDeviceRanks::Check() {
  const absl::Status checked = group_->Check();
  // Ends the waits of rows for a lost rank.
  if (!checked.ok() && stop_.bytes() > 0) *stop_.as<volatile int32_t>() = 1;
  return checked;
}

absl::StatusOr<int64_t> NcclDeviceRanks::AgreeOnLeast(int64_t mine) {
  const at::Tensor largest = at::full({1}, -static_cast<double>(mine),
                                      at::TensorOptions(at::kDouble).device(at::kCUDA, static_cast<int8_t>(device_)));
  SYNCOPATE_RETURN_IF_ERROR(group_->AllReduce(largest.data_ptr(), 1, Element::kFloat64, Reduction::kMax));
  SYNCOPATE_RETURN_IF_ERROR(group_->Finish());
  return -static_cast<int64_t>(largest.item<double>());
}

}  // namespace syncopate::rollouter
