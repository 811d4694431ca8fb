#include "rollouter/cuda/host_bounce.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "base/mutex.h"
#include "base/status.h"
#include "cuda/cuda_status.h"
#include "cuda/device.h"

namespace syncopate::rollouter {

using cuda::CudaStatus;
using synchronizer::ReceiveRequest;

absl::StatusOr<std::unique_ptr<HostBounce>> HostBounce::Create(std::unique_ptr<synchronizer::ReceiverTransport> inner,
                                                               int device, int64_t arena_bytes) {
  SYNCOPATE_ASSIGN_OR_RETURN(cuda::Stream stream, cuda::Stream::Create(device));
  return std::unique_ptr<HostBounce>(new HostBounce(std::move(inner), arena_bytes, std::move(stream)));
}

absl::Status HostBounce::Receive(const ReceiveRequest& request, char* destination, std::stop_token stop) {
  const cuda::DeviceScope scope(stream_.device());
  if (buffer_.data() == nullptr) {
    SYNCOPATE_ASSIGN_OR_RETURN(buffer_, cuda::PinnedBuffer::Create(arena_bytes_));
  }
  Mutex mutex;
  absl::Status copied;  // guarded by `mutex`: the inner transport may announce from several threads
  ReceiveRequest to_host = request;
  to_host.on_arrived = [&](ByteRange range, void*) {
    const cuda::DeviceScope here(stream_.device());
    {
      MutexLock lock(&mutex);
      if (!copied.ok()) return;
      copied = CudaStatus(cudaMemcpyAsync(destination + range.begin, buffer_.data() + range.begin,
                                          static_cast<size_t>(range.size()), cudaMemcpyHostToDevice, stream_.get()),
                          "copying received weights to the GPU");
      if (!copied.ok()) return;
    }
    request.on_arrived(range, stream_.get());
  };
  absl::Status received = inner_->Receive(to_host, buffer_.data(), stop);
  // The next transfer reuses the buffer, and after an error no copy may write to the destination later.
  absl::Status drained = CudaStatus(cudaStreamSynchronize(stream_.get()), "copying received weights to the GPU");
  SYNCOPATE_RETURN_IF_ERROR(received);
  SYNCOPATE_RETURN_IF_ERROR(copied);
  return drained;
}

}  // namespace syncopate::rollouter
