#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "synchronizer/ipc/ipc_server.h"
#include "synchronizer/lent_memory.h"
#include "synchronizer/transport/transport.h"

namespace syncopate::synchronizer {

// A staged version whose memory other processes may map. Unpins the version when it is destroyed.
class LentVersion {
 public:
  virtual ~LentVersion() = default;
  virtual SharedMemory memory() const = 0;
};

// Lends a source's staged versions. Thread-safe.
class LendingStore {
 public:
  virtual ~LendingStore() = default;
  virtual uint64_t fingerprint() const = 0;  // see WeightStore
  // Pins a version. If the memory is taken for a newer version nevertheless, the staging thread calls `on_superseded`
  // once, before anything is written to the memory; it must be quick. It is never called after the LentVersion is
  // destroyed. NOT_FOUND reason VERSION_NOT_STAGED.
  virtual absl::StatusOr<std::unique_ptr<LentVersion>> Lend(PolicyVersion version,
                                                            std::function<void()> on_superseded) = 0;
};

// The source's end of the transport "ipc", for members on one host: lends the memory of its send arena to receivers,
// which copy from it. It moves no byte itself: from Open to Close it only answers on a socket. Readers learn at once
// when the memory is taken for a newer version (ABORTED reason SUPERSEDED) or the attempt is closed (UNAVAILABLE reason
// PEER_LOST).
class IpcSource final : public SourceTransport {
 public:
  // `store` is borrowed. Starts the thread that answers. UNAVAILABLE reason SYSTEM or NO_HOST_ID.
  static absl::StatusOr<std::unique_ptr<IpcSource>> Create(LendingStore* store, const ipc::IpcServer::Options& options);

  std::string name() const override { return "ipc"; }
  absl::StatusOr<std::string> Open(const Prepare& attempt) override;
  void Close(int64_t attempt) override;

  const ipc::IpcServer& server() const { return *server_; }

 private:
  IpcSource(LendingStore* store, std::string host, std::unique_ptr<ipc::IpcServer> server)
      : store_(store), host_(std::move(host)), server_(std::move(server)) {}

  LendingStore* const store_;
  const std::string host_;
  const std::unique_ptr<ipc::IpcServer> server_;

  Mutex mutex_;
  std::map<int64_t, std::unique_ptr<LentVersion>> lent_ ABSL_GUARDED_BY(mutex_);  // by attempt
};

}  // namespace syncopate::synchronizer
