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

// Lends this process's memory to others of the same user and host, over a Unix socket in a private folder. One thread,
// which sleeps until a socket has something to say. Thread-safe; nothing blocks.
//
// What changes for readers is sent from within the call that says so: when Withdraw or Reclaim has returned, every
// reader finds the news in its socket before anything that the caller does next to the memory.
class IpcServer {
 public:
  struct Options {
    std::string folder = "/tmp";  // in which the private folder is made
    int max_sessions = 256;       // connections beyond are hung up on
  };

  // UNAVAILABLE reason SYSTEM, INVALID_ARGUMENT reason BAD_PATH.
  static absl::StatusOr<std::unique_ptr<IpcServer>> Start(const Options& options);
  ~IpcServer();  // hangs up on everybody

  std::string socket_path() const { return folder_.socket_path(); }

  // As OfferTable's.
  void Add(OfferTable::Offer offer);
  void Advance(int64_t attempt, int32_t source, int64_t bytes);
  void Complete(int64_t attempt);
  void Withdraw(int64_t attempt, const absl::Status& why);
  void Retire(int64_t attempt);
  void Reclaim(uint64_t memory_id, const PolicyVersion& version);

  // Calls `on_gone` from the server's thread, once, when the other end of `socket` is gone.
  void Watch(FileDescriptor socket, std::function<void()> on_gone);

  int64_t readers(int64_t attempt) const;

 private:
  using SessionId = OfferTable::SessionId;

  struct Session {
    FileDescriptor socket;
    std::function<void()> on_gone;  // not null: a socket that is watched, not served
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
  // Only the thread closes sockets, so a number that it polls is never another socket's.
  std::map<SessionId, Session> sessions_ ABSL_GUARDED_BY(mutex_);
  SessionId next_session_ ABSL_GUARDED_BY(mutex_) = 1;

  std::jthread thread_;  // last: ends before what it uses
};

}  // namespace syncopate::synchronizer::ipc
