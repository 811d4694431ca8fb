#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "synchronizer/ipc/copy_engine.h"
#include "synchronizer/ipc/ipc_server.h"
#include "synchronizer/ipc/mapping_cache.h"
#include "synchronizer/ipc/reception.h"
#include "synchronizer/transport/transport.h"

namespace syncopate::synchronizer {

// The receiver's end of the transport "ipc". It maps the memory of each upstream once, and copies from it in chunks
// with its own copy engine, while it listens on the upstreams' sockets. With more replicas than sources it reads from
// another replica while that one receives, and lends its own shadow to the next one.
//
// An upstream that dies, withdraws its memory or closes the attempt ends Receive within milliseconds. The memory stays
// mapped, so copies under way end safely; they have ended when Receive returns. If they do not end (INTERNAL reason
// COPY_STUCK: the GPU does not answer), this receiver refuses all further attempts, because the copies might still
// write to the destination.
class IpcReceiver final : public ReceiverTransport {
 public:
  struct Options {
    ipc::CopyEngine* engine = nullptr;  // borrowed
    // Returns the memory of the next Receive's destination, which is lent to other replicas. If null, or on an error,
    // this receiver does not relay: no replica reads from it.
    std::function<absl::StatusOr<SharedMemory>()> shadow = nullptr;
    int64_t chunk_bytes = 64 << 20;                          // of one copy: the unit of progress and cancellation
    int64_t bytes_in_flight = 256 << 20;                     // of copies queued ahead, so that the engine never waits
    absl::Duration poll_interval = absl::Microseconds(100);  // between two checks of copies under way
    absl::Duration drain_deadline = absl::Seconds(5);        // for the copies under way when an attempt fails
    // Number that stay mapped between syncs. A mapping keeps memory on its device that its owner has given back: 0 for a
    // source that gives its memory back after each sync.
    size_t mapped_memories = 64;
    ipc::IpcServer::Options server;
    const Clock* clock = Clock::Real();

    absl::Status Validate() const;  // INVALID_ARGUMENT reason BAD_OPTIONS
  };

  static absl::StatusOr<std::unique_ptr<IpcReceiver>> Create(Options options);
  ~IpcReceiver() override;  // leaks memory that copies which do not end may still use

  std::string name() const override { return "ipc"; }
  // Returns "" if this receiver lends nothing.
  absl::StatusOr<std::string> Open(const Prepare& attempt) override;
  // FAILED_PRECONDITION reason OTHER_HOST or NO_PEER_ACCESS before any byte moves.
  absl::Status Receive(const ReceiveRequest& request, char* destination, std::stop_token stop) override;
  // Also maps the sources' memory, so that Receive need not.
  absl::Status Probe(const ReceiveRequest& request, std::stop_token stop) override;
  // After a complete Receive the bytes stay readable for replicas that still copy them, until the memory is reused.
  void Close(int64_t attempt) override;

  size_t mapped_memories() const { return mappings_->size(); }

 private:
  IpcReceiver(Options options, std::string host, std::unique_ptr<ipc::IpcServer> server);

  // A queue, and the mappings from which its copies read.
  struct Copies {
    std::unique_ptr<ipc::CopyQueue> queue;
    std::vector<std::shared_ptr<const ipc::MappedMemory>> mappings;
  };

  absl::Status ReceiveWith(Copies* copies, const ReceiveRequest& request, char* destination,
                           const std::stop_token& stop);
  ipc::Reception::Options ReceptionOptions() const;
  absl::StatusOr<std::unique_ptr<ipc::CopyQueue>> TakeQueue();
  void GiveBack(Copies copies, const absl::Status& received);

  const Options options_;
  const std::string host_;
  const std::shared_ptr<ipc::MappingCache> mappings_;
  const std::unique_ptr<ipc::IpcServer> server_;

  Mutex mutex_;
  std::vector<std::unique_ptr<ipc::CopyQueue>> idle_queues_ ABSL_GUARDED_BY(mutex_);
  absl::Status stuck_ ABSL_GUARDED_BY(mutex_);
  std::vector<Copies> stuck_copies_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncopate::synchronizer
