#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "synchronizer/ipc/offer_table.h"
#include "synchronizer/ipc/socket_folder.h"
#include "synchronizer/ipc/unix_socket.h"

namespace syncopate::synchronizer::ipc {

// Lends this process's memory to processes of the same user and host, over a Unix socket in a private folder. One
// thread, which sleeps until a socket is readable. Thread-safe; no call blocks.
//
// Withdraw and Reclaim send their message to all readers before they return. So every reader finds it in its socket
// before any later change of the memory by the caller.
class IpcServer {
 public:
  struct Options {
    std::string folder = "/tmp";  // parent of the private folder
    int max_sessions = 256;       // more connections than this are closed at once
  };

  // UNAVAILABLE reason SYSTEM, INVALID_ARGUMENT reason BAD_PATH.
  static absl::StatusOr<std::unique_ptr<IpcServer>> Start(const Options& options);
  ~IpcServer();  // closes all connections

  std::string socket_path() const { return folder_.socket_path(); }

  // See the functions of OfferTable.
  void Add(OfferTable::Offer offer);
  void Advance(int64_t attempt, int32_t source, int64_t bytes);
  void Complete(int64_t attempt);
  void Withdraw(int64_t attempt, const absl::Status& why);
  void Retire(int64_t attempt);
  void Reclaim(uint64_t memory_id, const PolicyVersion& version);

  // Makes the server's thread call `on_gone` once when the peer of `socket` is gone.
  void Watch(FileDescriptor socket, std::function<void()> on_gone);

  int64_t readers(int64_t attempt) const;

 private:
  using SessionId = OfferTable::SessionId;

  struct Session {
    FileDescriptor socket;
    std::function<void()> on_gone;  // not null: the socket is watched, not served
  };

  IpcServer(const Options& options, SocketFolder folder, FileDescriptor listener)
      : options_(options), folder_(std::move(folder)), listener_(std::move(listener)) {}

  void Run(const std::stop_token& stop);
  bool TakeConnections();  // false: this process has no descriptor left
  void Serve(SessionId id);
  void End(SessionId id);
  absl::Status Answer(SessionId id, int socket);
  void Perform(const OfferTable::Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  const SocketFolder folder_;
  const FileDescriptor listener_;
  const WakeUp wake_;

  mutable Mutex mutex_;
  OfferTable table_ ABSL_GUARDED_BY(mutex_);
  // Only the thread closes sockets, so a descriptor that it polls never belongs to another socket.
  std::map<SessionId, Session> sessions_ ABSL_GUARDED_BY(mutex_);
  SessionId next_session_ ABSL_GUARDED_BY(mutex_) = 1;

  std::jthread thread_;  // last: ends before the members that it uses
};

}  // namespace syncopate::synchronizer::ipc
