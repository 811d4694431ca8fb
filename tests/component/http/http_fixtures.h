#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "services/http/http_server.h"

namespace syncopate::http {

inline constexpr absl::Duration kPatience = absl::Seconds(30);

// A client with one connection, which blocks for at most kPatience at a time.
class Client {
 public:
  explicit Client(uint16_t port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    const timeval patience = absl::ToTimeval(kPatience);
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  ~Client() { Close(); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void Send(const std::string& text) const { (void)!send(fd_, text.data(), text.size(), MSG_NOSIGNAL); }
  void Get(const std::string& path) const { Send(absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: here\r\n\r\n")); }
  void Post(const std::string& body, const std::string& more = "") const {
    Send(absl::StrCat("POST / HTTP/1.1\r\nHost: here\r\n", more, "Content-Length: ", body.size(), "\r\n\r\n", body));
  }
  // What has come when it contains `end`; less if the server closed, or the patience is over.
  std::string ReadUntil(const std::string& end) {
    while (!absl::StrContains(received_, end)) {
      char buffer[4096];
      const ssize_t size = recv(fd_, buffer, sizeof(buffer), 0);
      if (size <= 0) break;
      received_.append(buffer, static_cast<size_t>(size));
    }
    return std::exchange(received_, "");
  }
  // Whether the server closes the connection.
  bool IsClosed() const {
    char buffer[4096];
    ssize_t size = 0;
    while ((size = recv(fd_, buffer, sizeof(buffer), 0)) > 0) {
    }
    return size == 0 || errno == ECONNRESET;
  }
  int fd() const { return fd_; }
  void Close() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }

 private:
  int fd_;
  std::string received_;
};

// A value that one thread sets and another waits for.
template <typename T>
class Box {
 public:
  void Put(T value) {
    MutexLock lock(&mutex_);
    value_ = std::move(value);
    is_set_ = true;
  }
  bool Await() {
    MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(Condition(&is_set_), kPatience);
  }
  T Get() {
    EXPECT_TRUE(Await());
    MutexLock lock(&mutex_);
    return value_;
  }

 private:
  Mutex mutex_;
  bool is_set_ ABSL_GUARDED_BY(mutex_) = false;
  T value_ ABSL_GUARDED_BY(mutex_) = {};
};

// A stream whose bytes a test puts in.
class Parts final : public StreamSource {
 public:
  void Add(const std::string& bytes, bool last = false) {
    MutexLock lock(&mutex_);
    bytes_ += bytes;
    last_ = last;
  }
  bool Take(std::string* bytes) override {
    MutexLock lock(&mutex_);
    bytes->append(std::exchange(bytes_, ""));
    return last_;
  }

 private:
  Mutex mutex_;
  std::string bytes_ ABSL_GUARDED_BY(mutex_);
  bool last_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace syncopate::http
