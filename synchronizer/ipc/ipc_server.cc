#include "synchronizer/ipc/ipc_server.h"

#include <poll.h>
#include <sys/socket.h>

#include <optional>
#include <utility>

#include "base/log.h"
#include "base/status.h"

namespace syncopate::synchronizer::ipc {
namespace {

// If no descriptors are left, no connection can be accepted; the listener is polled again after this time.
constexpr int kBreathMs = 50;

}  // namespace

absl::StatusOr<std::unique_ptr<IpcServer>> IpcServer::Start(const Options& options) {
  SYNCOPATE_ASSIGN_OR_RETURN(SocketFolder folder, SocketFolder::Create(options.folder));
  SYNCOPATE_ASSIGN_OR_RETURN(FileDescriptor listener, Listen(folder.socket_path()));
  std::unique_ptr<IpcServer> server(new IpcServer(options, std::move(folder), std::move(listener)));
  server->thread_ = std::jthread([raw = server.get()](const std::stop_token& stop) { raw->Run(stop); });
  return server;
}

IpcServer::~IpcServer() {
  thread_.request_stop();
  wake_.Wake();
}

void IpcServer::Run(const std::stop_token& stop) {
  bool short_of_descriptors = false;
  while (!stop.stop_requested()) {
    std::vector<pollfd> sockets = {{wake_.fd(), POLLIN, 0}};
    std::vector<SessionId> ids;
    {
      MutexLock lock(&mutex_);
      for (const auto& [id, session] : sessions_) {
        short events = session.on_gone != nullptr ? POLLRDHUP : POLLIN;
        sockets.push_back({session.socket.get(), events, 0});
        ids.push_back(id);
      }
    }
    if (!short_of_descriptors) sockets.push_back({listener_.get(), POLLIN, 0});
    int ready = ::poll(sockets.data(), sockets.size(), short_of_descriptors ? kBreathMs : -1);
    short_of_descriptors = false;
    if (ready <= 0) continue;
    if (sockets.front().revents != 0) wake_.Clear();
    for (size_t i = 0; i < ids.size(); ++i) {
      if (sockets[i + 1].revents != 0) Serve(ids[i]);
    }
    if (sockets.size() > ids.size() + 1 && sockets.back().revents != 0) short_of_descriptors = !TakeConnections();
  }
}

bool IpcServer::TakeConnections() {
  for (;;) {
    absl::StatusOr<std::optional<FileDescriptor>> taken = Accept(listener_);
    if (!taken.ok()) {
      SYNCOPATE_LOG(kWarning, "ipc: %s", std::string(taken.status().message()));
      return false;
    }
    if (!taken->has_value()) return true;
    MutexLock lock(&mutex_);
    if (static_cast<int>(sessions_.size()) >= options_.max_sessions) continue;  // closes the connection
    sessions_[next_session_++].socket = *std::move(*taken);
  }
}

void IpcServer::Serve(SessionId id) {
  int socket = -1;
  bool watched = false;
  {
    MutexLock lock(&mutex_);
    const Session& session = sessions_.at(id);
    socket = session.socket.get();
    watched = session.on_gone != nullptr;
  }
  if (watched || !Answer(id, socket).ok()) End(id);
}

absl::Status IpcServer::Answer(SessionId id, int socket) {
  for (;;) {
    SYNCOPATE_ASSIGN_OR_RETURN(std::optional<Packet> packet, Receive(socket));
    if (!packet.has_value()) return absl::OkStatus();
    MutexLock lock(&mutex_);
    SYNCOPATE_ASSIGN_OR_RETURN(OfferTable::Actions actions, table_.OnMessage(id, packet->message));
    Perform(actions);
  }
}

void IpcServer::End(SessionId id) {
  Session ended;  // closed, and its callback run, without the lock
  {
    MutexLock lock(&mutex_);
    auto found = sessions_.find(id);
    ended = std::move(found->second);
    sessions_.erase(found);
    table_.OnGone(id);
  }
  if (ended.on_gone != nullptr) ended.on_gone();
}

void IpcServer::Perform(const OfferTable::Actions& actions) {
  static const std::vector<FileDescriptor> kNoHandles;
  for (const OfferTable::Action& action : actions) {
    auto found = sessions_.find(action.session);
    if (found == sessions_.end()) continue;
    int socket = found->second.socket.get();
    const std::vector<FileDescriptor>& handles = action.handles != nullptr ? action.handles->handles : kNoHandles;
    // A reader that missed a message must not read on: the thread finds the socket shut down and ends the session.
    if (!Send(socket, action.message, handles).ok()) ::shutdown(socket, SHUT_RDWR);
  }
}

void IpcServer::Add(OfferTable::Offer offer) {
  MutexLock lock(&mutex_);
  Perform(table_.Add(std::move(offer)));
}

void IpcServer::Advance(int64_t attempt, int32_t source, int64_t bytes) {
  MutexLock lock(&mutex_);
  Perform(table_.Advance(attempt, source, bytes));
}

void IpcServer::Complete(int64_t attempt) {
  MutexLock lock(&mutex_);
  Perform(table_.Complete(attempt));
}

void IpcServer::Withdraw(int64_t attempt, const absl::Status& why) {
  MutexLock lock(&mutex_);
  Perform(table_.Withdraw(attempt, why));
}

void IpcServer::Retire(int64_t attempt) {
  MutexLock lock(&mutex_);
  Perform(table_.Retire(attempt));
}

void IpcServer::Reclaim(uint64_t memory_id, const PolicyVersion& version) {
  MutexLock lock(&mutex_);
  Perform(table_.Reclaim(memory_id, version));
}

void IpcServer::Watch(FileDescriptor socket, std::function<void()> on_gone) {
  {
    MutexLock lock(&mutex_);
    sessions_[next_session_++] = {std::move(socket), std::move(on_gone)};
  }
  wake_.Wake();
}

int64_t IpcServer::readers(int64_t attempt) const {
  MutexLock lock(&mutex_);
  return table_.readers(attempt);
}

}  // namespace syncopate::synchronizer::ipc
