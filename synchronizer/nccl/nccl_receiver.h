#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "synchronizer/nccl/group_plan.h"
#include "synchronizer/nccl/group_worker.h"
#include "synchronizer/transport/transport.h"

namespace syncopate::synchronizer {

// The NCCL version and the GPU of a process.
struct NcclFacts {
  int version = 0;  // NCCL's own number, e.g. 22809
  std::string gpu;  // UUID
};

// The receiver's end of the transport "nccl", for GPUs of one or many hosts: forms communicators with the other members
// of an attempt, or uses those of an earlier attempt of the same members, and receives few large messages. One Receive
// at a time.
//
// If a member is lost or leaves the transfer, the others hang, because NCCL does not notify them. So the attempt's
// deadline or `stop` ends Receive, which aborts the communicators within about half a second. The GPU stays usable, and
// the next attempt forms new communicators.
class NcclReceiver final : public ReceiverTransport {
 public:
  struct Options {
    NcclFacts facts;
    nccl::RoundOptions rounds;
    nccl::GroupWorker::Options worker;

    absl::Status Validate() const;  // INVALID_ARGUMENT reason BAD_OPTIONS
  };

  static absl::StatusOr<std::unique_ptr<NcclReceiver>> Create(const Options& options,
                                                              nccl::GroupWorker::DeviceFactory device);

  std::string name() const override { return "nccl"; }
  absl::StatusOr<std::string> Open(const Prepare& attempt) override;
  // Before a communicator exists: FAILED_PRECONDITION reason NCCL_MISMATCH, DUPLICATE_GPU or MIXED_PAYLOAD,
  // INVALID_ARGUMENT reason BAD_RENDEZVOUS. Later also UNAVAILABLE reason GROUP_LOST or PEER_LOST, INTERNAL reason
  // NCCL_ERROR, ABORT_STUCK or COPY_STUCK.
  absl::Status Receive(const ReceiveRequest& request, char* destination, std::stop_token stop) override;
  void Connect(const ReceiveRequest& request, std::function<void(absl::Status)> done) override;
  void Close(int64_t attempt) override;

 private:
  NcclReceiver(const Options& options, nccl::GroupWorker::DeviceFactory device)
      : options_(options), worker_(std::move(device), options.worker) {}

  // The job for Receive and Connect; the caller must set `done`.
  absl::StatusOr<nccl::GroupWorker::Job> JobFor(const ReceiveRequest& request) const;

  const Options options_;
  nccl::GroupWorker worker_;
};

}  // namespace syncopate::synchronizer
