#pragma once

#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "synchronizer/ipc/ipc_server.h"
#include "synchronizer/lent_memory.h"

namespace syncopate::synchronizer::ipc {

// Lends the base weights of a trainer, which never change, to processes of the same user and host. They map the memory
// in place of receiving its bytes, and keep it when this process ends. Thread-safe; no call blocks.
//
// Host memory is lent to any number of processes, which cannot write to it. Memory of a GPU is lent to one process at a
// time, because the decoder of a rollouter writes the A of its adapters to the rows that the base leaves free
// (TensorSpec::spare_rows). The loan ends when that process closes LentMemory::loan, or ends.
class BaseLender {
 public:
  // `fingerprint`: of the manifest. UNAVAILABLE reason SYSTEM or NO_HOST_ID.
  static absl::StatusOr<std::unique_ptr<BaseLender>> Create(uint64_t fingerprint,
                                                            const IpcServer::Options& options = {});

  // Lends `memory`, whose bytes must not change any more. Returns where it can be borrowed (BorrowBase). Calls with the
  // same memory return the same.
  std::string Lend(SharedMemory memory);

 private:
  BaseLender(uint64_t fingerprint, std::string host, std::unique_ptr<IpcServer> server)
      : fingerprint_(fingerprint), host_(std::move(host)), server_(std::move(server)) {}

  const uint64_t fingerprint_;
  const std::string host_;
  const std::unique_ptr<IpcServer> server_;
};

// Who borrows.
struct Borrower {
  std::string device = {};  // UUID of the GPU on which the memory must lie; "": it must be host memory
  uint64_t id = 0;          // random, drawn once by a process, which may ask again before it has given a loan back
};

// Gets the memory that a BaseLender lends at `rendezvous`, for a manifest with this fingerprint. Blocks for a round trip,
// at most until `deadline` or `stop`. FAILED_PRECONDITION reason OTHER_HOST, OTHER_DEVICE or MODEL_MISMATCH, UNAVAILABLE
// reason ON_LOAN if another process has it, PEER_LOST if nobody answers there, PERMISSION_DENIED reason OTHER_USER,
// DEADLINE_EXCEEDED reason DEADLINE, CANCELLED, INVALID_ARGUMENT reason BAD_RENDEZVOUS or BAD_MESSAGE.
absl::StatusOr<LentMemory> BorrowBase(const std::string& rendezvous, uint64_t fingerprint, const Borrower& borrower,
                                      absl::Time deadline, const std::stop_token& stop,
                                      const Clock* clock = Clock::Real());

}  // namespace syncopate::synchronizer::ipc
