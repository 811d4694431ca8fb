#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "cuda/stream.h"
#include "synchronizer/transport/transport.h"

namespace syncopate::rollouter {

// Lets a transport over host memory ("grpc") receive into a GPU: bytes that arrive in a page-locked buffer are copied
// to the GPU at once, on a stream of its own. The buffer has the size of an arena; the first transfer allocates it.
// Receive() blocks and is used by one thread at a time.
class HostBounce final : public synchronizer::ReceiverTransport {
 public:
  // `arena_bytes` is the size of the destinations.
  static absl::StatusOr<std::unique_ptr<HostBounce>> Create(std::unique_ptr<synchronizer::ReceiverTransport> inner,
                                                            int device, int64_t arena_bytes);

  std::string name() const override { return inner_->name(); }
  absl::StatusOr<std::string> Open(const synchronizer::Prepare& attempt) override { return inner_->Open(attempt); }
  absl::Status Receive(const synchronizer::ReceiveRequest& request, char* destination, std::stop_token stop) override;
  absl::Status Probe(const synchronizer::ReceiveRequest& request, std::stop_token stop) override {
    return inner_->Probe(request, std::move(stop));
  }
  void Connect(const synchronizer::ReceiveRequest& request, std::function<void(absl::Status)> done) override {
    inner_->Connect(request, std::move(done));
  }
  void Close(int64_t attempt) override { inner_->Close(attempt); }

 private:
  HostBounce(std::unique_ptr<synchronizer::ReceiverTransport> inner, int64_t arena_bytes, cuda::Stream stream)
      : inner_(std::move(inner)), arena_bytes_(arena_bytes), stream_(std::move(stream)) {}

  const std::unique_ptr<synchronizer::ReceiverTransport> inner_;
  const int64_t arena_bytes_;
  const cuda::Stream stream_;
  cuda::PinnedBuffer buffer_;  // used by the receiving thread
};

}  // namespace syncopate::rollouter
