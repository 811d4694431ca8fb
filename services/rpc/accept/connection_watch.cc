#include "services/rpc/accept/connection_watch.h"

#include <grpcpp/server_context.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "base/clock.h"
#include "base/file_descriptor.h"
#include "base/log.h"

namespace syncopate::rpc {
namespace {

// The port of the other end; 0 if it is gone.
int PeerPort(int fd) {
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&storage), &size) != 0) return 0;
  return ntohs(storage.ss_family == AF_INET ? reinterpret_cast<sockaddr_in*>(&storage)->sin_port
                                            : reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port);
}

// The number of bytes received from the other end; 0 if unknown.
int64_t ReceivedBytes(int fd) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return 0;
  return static_cast<int64_t>(info.tcpi_bytes_received);
}

class Factory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit Factory(std::shared_ptr<ConnectionWatch> watch) : watch_(std::move(watch)) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo* call) override {
    watch_->CallBegan(call->server_context()->peer());
    return nullptr;  // gRPC skips a null interceptor
  }

 private:
  const std::shared_ptr<ConnectionWatch> watch_;
};

}  // namespace

ConnectionWatch::ConnectionWatch(std::string listener, const Options& options)
    : listener_(std::move(listener)), options_(options), thread_([this] { Run(); }) {}

ConnectionWatch::~ConnectionWatch() { Stop(); }

void ConnectionWatch::Stop() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  MutexLock lock(&join_mutex_);
  if (thread_.joinable()) thread_.join();
}

void ConnectionWatch::Add(int fd) {
  const std::optional<ino_t> inode = GetInode(fd);
  const int port = PeerPort(fd);
  if (!inode.has_value() || port == 0) return;
  MutexLock lock(&mutex_);
  connections_[fd] = {*inode, port, Clock::Real()->Now()};
  silent_ = static_cast<int64_t>(connections_.size());
}

void ConnectionWatch::Run() {
  MutexLock lock(&mutex_);
  auto something = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !connections_.empty(); };
  while (!stopping_) {
    mutex_.Await(Condition(&something));
    if (mutex_.AwaitWithTimeout(Condition(&stopping_), kLookEvery)) return;
    LookLocked();
  }
}

void ConnectionWatch::LookLocked() {
  const absl::Time now = Clock::Real()->Now();
  for (auto next = connections_.begin(); next != connections_.end();) {
    const auto& [fd, connection] = *next;
    const int64_t limit = now - connection.since > options_.patience ? options_.in_time : options_.at_once;
    const int64_t received = ReceivedBytes(fd);
    const bool closed = GetInode(fd) != connection.inode;
    const bool too_much = !closed && received > limit;
    if (too_much) {
      // gRPC's reader sees the end of the stream and closes the socket. The descriptor was checked just now, so it
      // still belongs to this connection.
      ::shutdown(fd, SHUT_RDWR);
      SYNCOPATE_LOG(kWarning, "listener %s: a connection from port %d is cut: it sent %d bytes and began no call",
                    listener_, connection.port, received);
    }
    next = closed || too_much ? connections_.erase(next) : std::next(next);
  }
  silent_ = static_cast<int64_t>(connections_.size());
}

void ConnectionWatch::CallBegan(const std::string& peer) {
  if (silent_ == 0) return;
  int port = 0;
  if (!absl::SimpleAtoi(peer.substr(peer.rfind(':') + 1), &port)) return;
  MutexLock lock(&mutex_);
  std::erase_if(connections_, [port](const auto& entry) { return entry.second.port == port; });
  silent_ = static_cast<int64_t>(connections_.size());
}

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> ConnectionWatch::Interceptors(
    std::shared_ptr<ConnectionWatch> watch) {
  return std::make_unique<Factory>(std::move(watch));
}

}  // namespace syncopate::rpc
