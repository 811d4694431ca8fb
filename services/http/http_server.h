#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/acceptor.h"
#include "base/mutex.h"
#include "base/worker.h"

struct MHD_Daemon;

namespace syncopate::http {

struct Request {
  std::string method = {};
  std::string path = {};           // without the query
  std::string host = {};           // the Host header
  std::string authorization = {};  // the Authorization header
  std::string content_type = {};   // the Content-Type header
  uint16_t port = 0;               // that the server listens on
  std::string body = {};
};

// Whether a Host header names this machine by a loopback address and `port`. Without tokens a server asks for it, so that
// no page of a browser reaches it under a name of its own.
bool NamesThisMachine(const std::string& host, uint16_t port);

struct Response {
  int code = 200;
  std::string body = {};
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers = {};
};

// The bytes of an answer that is sent in parts, as a response of type text/event-stream.
class StreamSource {
 public:
  virtual ~StreamSource() = default;
  // Appends the bytes that are ready to *bytes, perhaps none. True: they are the last. Called on the server's thread,
  // when the client can take more; must not block.
  virtual bool Take(std::string* bytes) = 0;
};

// One request and its one response. Thread-safe.
class Exchange {
 public:
  virtual ~Exchange() = default;
  // The body is there until the handler returns.
  virtual const Request& request() const = 0;
  // Sends the response that `make` returns; `make` runs on the server's thread. Call Respond() or Stream(), once.
  virtual void Respond(std::function<Response()> make) = 0;
  // Begins to send what `source` gives.
  virtual void Stream(std::shared_ptr<StreamSource> source) = 0;
  // The source has more bytes, or has ended. Does not block; no effect before Stream() or after the end.
  virtual void Wake() = 0;
  // `listener` is called at most once, if the client leaves before it has the whole response; at once if it has left. It
  // runs on a thread of the server and must not block.
  virtual void SetGoneListener(std::function<void()> listener) = 0;
};

// A server for HTTP/1.1 with bodies, keep-alive and streamed answers: libmicrohttpd reads requests and writes
// responses, and our Acceptor hands it the connections. One thread serves all connections. Handlers run on workers.
//
// What a client can cost: a connection of the limited number, until `header_timeout` or `body_timeout` has passed, and a
// part of `max_buffered_bytes`. A client that takes nothing is cut off after `idle_timeout`; the others do not wait for
// it. A client that leaves, or closes its side of the connection, is noticed within kLookEvery.
class HttpServer {
 public:
  static constexpr absl::Duration kLookEvery = absl::Milliseconds(250);

  struct Options {
    std::string what = "the endpoint";     // names what is served, in errors and in the log
    std::string address = "127.0.0.1:0";   // host:port, host a literal address; port 0 picks one
    int max_connections = 4096;            // one more is closed at once
    size_t max_header_bytes = 64 << 10;    // memory of a connection: request line, headers and buffers; more get 431
    size_t max_body_bytes = 16 << 20;      // a longer body gets 413
    int64_t max_buffered_bytes = 1 << 28;  // bodies of all requests together; a request beyond it gets 503
    absl::Duration header_timeout = absl::Seconds(10);  // from the connection's beginning to the end of the headers
    absl::Duration body_timeout = absl::Seconds(60);    // from there to the end of the body
    absl::Duration idle_timeout = absl::Seconds(60);    // between two requests, and for a client that takes no bytes
    int workers = 2;                                    // threads for handlers
  };
  // Called for each whole request, on a worker. It may keep the exchange and answer later.
  using Handler = std::function<void(std::shared_ptr<Exchange>)>;
  // Called on the server's thread with method, path and headers alone. A response with a code other than 200 refuses the
  // request before its body is read. Must not block.
  using Guard = std::function<Response(const Request&)>;
  // Makes the body of a response with which the server itself refuses a request.
  using Refusal = std::function<std::string(int code, const std::string& message)>;

  // Listens and serves. INVALID_ARGUMENT (reason BAD_ADDRESS), ALREADY_EXISTS (reason ADDRESS_IN_USE),
  // RESOURCE_EXHAUSTED if the library cannot start.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const Options& options, Guard guard, Refusal refusal,
                                                           Handler handler);
  ~HttpServer();  // Stop
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  const HostPort& endpoint() const { return acceptor_->endpoint(); }  // with the port that was bound

  // Closes every connection, which calls the listeners of unfinished exchanges, and joins the threads. Idempotent, not
  // thread-safe.
  void Stop();

 private:
  class Pending;
  struct Callbacks;
  struct Connection {
    absl::Time deadline;                          // of what the client has to send; infinite while it waits
    std::shared_ptr<Pending> exchange = nullptr;  // the request under way
  };

  HttpServer(const Options& options, Guard guard, Refusal refusal, Handler handler)
      : options_(options), guard_(std::move(guard)), refusal_(std::move(refusal)), handler_(std::move(handler)) {}

  void Look();
  // Closes connections that are late, and tells exchanges whose clients have left.
  void LookOnce();
  void SetDeadline(int fd, absl::Duration from_now, std::shared_ptr<Pending> exchange);
  bool Dispatch(const std::shared_ptr<Pending>& exchange);

  const Options options_;
  const Guard guard_;
  const Refusal refusal_;
  const Handler handler_;
  std::unique_ptr<Acceptor> acceptor_;
  MHD_Daemon* daemon_ = nullptr;
  std::vector<std::unique_ptr<Worker>> workers_;
  size_t next_worker_ = 0;  // used on the server's thread
  const std::shared_ptr<std::atomic<int64_t>> buffered_bytes_ = std::make_shared<std::atomic<int64_t>>(0);
  Mutex mutex_;
  std::map<int, Connection> connections_ ABSL_GUARDED_BY(mutex_);  // by descriptor
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread look_thread_;
};

}  // namespace syncopate::http
