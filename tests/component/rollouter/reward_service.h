#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"

namespace syncopate::rollouterd {

// An HTTP/1.1 service on loopback whose answers the test makes: one thread for each connection, one request at a time.
class RewardService {
 public:
  struct Reply {
    int status = 200;
    std::string body = {};
    bool hang_up = false;  // true: the connection ends without an answer
    bool hang = false;     // true: the answer comes only when the service ends
    bool unended = false;  // true: the whole body comes, and the client waits for more of it
  };
  using Handler = std::function<Reply(const std::string& body)>;

  explicit RewardService(Handler handler, int port = 0) : handler_(std::move(handler)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int on = 1;
    ::setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    if (::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(listener_, 64) != 0) ::abort();
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { Accept(); });
  }
  ~RewardService() {
    {
      MutexLock lock(&mutex_);
      ending_ = true;
      for (const int connection : connections_) ::shutdown(connection, SHUT_RDWR);
    }
    ::shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    for (std::thread& thread : threads_) thread.join();
    for (const int connection : connections_) ::close(connection);
    ::close(listener_);
  }

  int port() const { return port_; }
  std::string url() const { return absl::StrCat("http://127.0.0.1:", port_, "/score"); }
  std::vector<std::string> bodies() {
    MutexLock lock(&mutex_);
    return bodies_;
  }

 private:
  void Accept() {
    for (int connection; (connection = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;) {
      MutexLock lock(&mutex_);
      connections_.push_back(connection);
      if (ending_) return;
      threads_.emplace_back([this, connection] { Serve(connection); });
    }
  }

  void Serve(int connection) {
    std::string pending;
    while (true) {
      const size_t head = Read(connection, &pending, [&pending] { return pending.find("\r\n\r\n"); });
      if (head == std::string::npos) return;
      int64_t length = 0;
      const size_t at = pending.find("Content-Length: ");
      if (at == std::string::npos ||
          !absl::SimpleAtoi(pending.substr(at + 16, pending.find("\r\n", at) - at - 16), &length)) {
        return;
      }
      const size_t end = head + 4 + static_cast<size_t>(length);
      const size_t whole = Read(connection, &pending, [&] { return pending.size() >= end ? end : std::string::npos; });
      if (whole == std::string::npos) return;
      const std::string body = pending.substr(head + 4, static_cast<size_t>(length));
      pending.erase(0, end);
      {
        MutexLock lock(&mutex_);
        bodies_.push_back(body);
      }
      const Reply reply = handler_(body);
      if (reply.hang) Read(connection, &pending, [] { return std::string::npos; });
      if (reply.hang || reply.hang_up) {
        ::shutdown(connection, SHUT_RDWR);
        return;
      }
      const std::string text =
          absl::StrCat("HTTP/1.1 ", reply.status, " X\r\nContent-Length: ", reply.body.size() + (reply.unended ? 1 : 0),
                       "\r\n\r\n", reply.body);
      if (::send(connection, text.data(), text.size(), MSG_NOSIGNAL) < 0) return;
    }
  }

  // Reads until `found` returns a position; npos if the connection ends first.
  template <typename Found>
  static size_t Read(int connection, std::string* pending, const Found& found) {
    while (true) {
      const size_t place = found();
      if (place != std::string::npos) return place;
      char buffer[65536];
      const ssize_t count = ::recv(connection, buffer, sizeof(buffer), 0);
      if (count <= 0) return std::string::npos;
      pending->append(buffer, static_cast<size_t>(count));
    }
  }

  const Handler handler_;
  int listener_ = -1;
  int port_ = 0;
  std::thread acceptor_;
  Mutex mutex_;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<int> connections_;
  std::vector<std::thread> threads_;
  std::vector<std::string> bodies_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncopate::rollouterd
