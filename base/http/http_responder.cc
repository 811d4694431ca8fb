#include "base/http/http_responder.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace syncopate {

absl::StatusOr<std::unique_ptr<HttpResponder>> HttpResponder::Start(const Options& options, Answer answer) {
  SYNCOPATE_ASSIGN_OR_RETURN(HostPort endpoint, ParseListenAddress(options.address));
  // The responder has no TLS and no authentication.
  if (!endpoint.IsLoopback() && !options.insecure_bind) {
    return Error(absl::StatusCode::kInvalidArgument, "INSECURE_BIND",
                 absl::StrCat("refusing to serve ", options.what, " on ", endpoint.ToString(),
                              ": it is not loopback; allow it explicitly with insecure_bind if the network is trusted"),
                 {{"address", endpoint.ToString()}});
  }
  if (options.max_connections <= 0 || std::min(options.request_timeout, options.timeout) <= absl::ZeroDuration()) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_OPTIONS",
                 "HttpResponder: max_connections, request_timeout and timeout must be positive");
  }
  std::unique_ptr<HttpResponder> responder(new HttpResponder());
  responder->options_ = options;
  responder->answer_ = std::move(answer);
  SYNCOPATE_ASSIGN_OR_RETURN(responder->acceptor_, Acceptor::Listen(endpoint));
  responder->wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (responder->wake_ < 0)
    return absl::ResourceExhaustedError(absl::StrCat("no file descriptor left to serve ", options.what));
  responder->thread_ = std::thread([self = responder.get()] { self->Loop(); });
  return responder;
}

HttpResponder::~HttpResponder() {
  Stop();
  if (wake_ >= 0) close(wake_);
}

void HttpResponder::Stop() {
  if (!thread_.joinable()) return;
  uint64_t one = 1;
  // An eventfd takes this write unless its counter is full, and then the thread is awake already.
  [[maybe_unused]] ssize_t written = write(wake_, &one, sizeof(one));
  thread_.join();
  for (Connection& connection : connections_) close(connection.fd);
  connections_.clear();
  acceptor_->Stop();
}

void HttpResponder::Loop() {
  while (true) {
    std::vector<pollfd> watched = {{wake_, POLLIN, 0}, {acceptor_->listener(), POLLIN, 0}};
    absl::Duration wait = absl::InfiniteDuration();
    for (const Connection& connection : connections_) {
      bool sending = !connection.answer.empty() && !connection.lingering;
      watched.push_back({connection.fd, static_cast<short>(sending ? POLLOUT : POLLIN), 0});
      wait = std::min(wait, connection.deadline - Clock::Real()->Now());
    }
    // Waits until the first deadline, plus 1 ms: otherwise poll() would spin during the last millisecond.
    int wait_ms = connections_.empty() ? -1 : static_cast<int>(absl::ToInt64Milliseconds(wait)) + 1;
    if (poll(watched.data(), watched.size(), std::max(wait_ms, connections_.empty() ? -1 : 0)) < 0) continue;  // EINTR
    if (watched[0].revents != 0) return;
    // Events are in the order of connections_, which does not change before this loop.
    auto event = std::next(watched.begin(), 2);
    for (auto it = connections_.begin(); it != connections_.end(); ++event) {
      bool timed_out = Clock::Real()->Now() >= it->deadline;
      if (event->revents != 0 || timed_out) Advance(*it, timed_out);
      if (it->finished) close(it->fd);
      it = it->finished ? connections_.erase(it) : std::next(it);
    }
    if (watched[1].revents != 0) Admit();
  }
}

void HttpResponder::Admit() {
  int fd = acceptor_->Accept();
  if (fd < 0) return;
  if (static_cast<int>(connections_.size()) >= options_.max_connections) {
    // Closes the oldest: a client that opens many connections and sends nothing must not lock out a scrape.
    close(connections_.front().fd);
    connections_.pop_front();
  }
  Connection connection;
  connection.fd = fd;
  connection.deadline = Clock::Real()->Now() + options_.request_timeout;
  connections_.push_back(std::move(connection));
}

void HttpResponder::Advance(Connection& connection, bool timed_out) const {
  if (timed_out) {
    // A client that is too slow gets status 408, if the socket takes it without blocking.
    if (connection.answer.empty()) {
      connection.answer = answer_({.code = 408});
      Send(connection);
    }
    connection.finished = true;
    return;
  }
  if (connection.answer.empty() || connection.lingering) Receive(connection);
  if (!connection.finished && !connection.answer.empty() && !connection.lingering) Send(connection);
}

void HttpResponder::Receive(Connection& connection) const {
  char buffer[kMaxHttpRequestBytes];
  ssize_t size = recv(connection.fd, buffer, sizeof(buffer), 0);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (size <= 0) {
    connection.finished = true;
    return;
  }
  if (connection.lingering) return;  // thrown away
  connection.received.append(buffer, static_cast<size_t>(size));
  const HttpRequest request = ReadHttpRequest(connection.received, options_.max_request_bytes);
  if (request.code == 0) return;
  connection.answer = answer_(request);
  connection.deadline = Clock::Real()->Now() + options_.timeout;
}

void HttpResponder::Send(Connection& connection) const {
  const std::string& answer = connection.answer;
  ssize_t size = send(connection.fd, answer.data() + connection.sent, answer.size() - connection.sent, MSG_NOSIGNAL);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (size < 0) {
    connection.finished = true;
    return;
  }
  connection.sent += static_cast<size_t>(size);
  if (connection.sent < answer.size()) return;
  // From now on bytes of the peer are read and discarded until it closes. Closing first would reset the connection, and
  // the answer could be lost.
  shutdown(connection.fd, SHUT_WR);
  connection.lingering = true;
}

}  // namespace syncopate
