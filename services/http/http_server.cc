#include "services/http/http_server.h"

#include <microhttpd.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"

namespace syncopate::http {
namespace {

constexpr size_t kBlockBytes = 8 << 10;  // what the library asks a stream for at once
constexpr size_t kMaxWaiting = 4096;     // requests that wait for a worker

int DescriptorOf(MHD_Connection* connection) {
  const MHD_ConnectionInfo* info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
  return info == nullptr ? -1 : info->connect_fd;
}

std::string Header(MHD_Connection* connection, const char* name) {
  const char* value = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name);
  return value == nullptr ? "" : value;
}

bool HasHeader(MHD_Connection* connection, const char* name) {
  return MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name) != nullptr;
}

bool HasLeft(int fd) {
  pollfd watched = {fd, POLLRDHUP, 0};
  return poll(&watched, 1, 0) > 0 && (watched.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
}

}  // namespace

bool NamesThisMachine(const std::string& host, uint16_t port) {
  for (const char* name : {"127.0.0.1", "localhost", "[::1]"}) {
    if (host == absl::StrCat(name, ":", port)) return true;
  }
  return false;
}

// States of an exchange:
//
//   receiving → (body complete) → waiting, suspended → Respond() → answered → sent
//                                                    → Stream()  → streaming ⇄ suspended → sent
//
// A suspended connection is not watched by the library: Wake(), Respond(), Stream() and Leave() resume it. After
// Detach() no method touches the connection.
class HttpServer::Pending final : public Exchange, public std::enable_shared_from_this<Pending> {
 public:
  Pending(const HttpServer& server, MHD_Connection* connection, Request request)
      : max_body_bytes_(server.options_.max_body_bytes),
        max_buffered_bytes_(server.options_.max_buffered_bytes),
        buffered_bytes_(server.buffered_bytes_),
        connection_(connection),
        request_(std::move(request)) {}
  ~Pending() override { DropBody(); }

  const Request& request() const override { return request_; }

  // The following two are called on the server's thread before Suspend(). False if the body is over a limit, whose
  // response code is then in refused().
  bool Receive(const char* data, size_t size) {
    if (refused_ != 0) return false;
    if (request_.body.size() + size > max_body_bytes_) refused_ = 413;
    counted_ += static_cast<int64_t>(size);
    if ((*buffered_bytes_ += static_cast<int64_t>(size)) > max_buffered_bytes_) refused_ = 503;
    if (refused_ != 0) {
      DropBody();
      return false;
    }
    request_.body.append(data, size);
    return true;
  }
  void DropBody() {
    request_.body = std::string();
    *buffered_bytes_ -= std::exchange(counted_, 0);
  }
  int refused() const { return refused_; }

  // Stops the library from watching the connection until there is an answer. False if the server is stopping.
  bool Suspend() {
    MutexLock lock(&mutex_);
    dispatched_ = true;
    SuspendLocked();
    return !gone_;
  }
  bool dispatched() const {
    MutexLock lock(&mutex_);
    return dispatched_;
  }

  void Respond(std::function<Response()> make) override {
    MutexLock lock(&mutex_);
    if (finished_ || make_ || source_ != nullptr) return;
    make_ = std::move(make);
    ResumeLocked();
  }
  void Stream(std::shared_ptr<StreamSource> source) override {
    MutexLock lock(&mutex_);
    if (finished_ || make_ || source_ != nullptr) return;
    source_ = std::move(source);
    ResumeLocked();
  }
  void Wake() override {
    MutexLock lock(&mutex_);
    awake_ = true;
    if (source_ != nullptr) ResumeLocked();
  }
  void SetGoneListener(std::function<void()> listener) override {
    {
      MutexLock lock(&mutex_);
      if (!gone_) {
        if (!finished_) listener_ = std::move(listener);
        return;
      }
    }
    listener();
  }

  // The client has left: the connection ends at the library's next look at it.
  void Leave() {
    std::function<void()> listener;
    {
      MutexLock lock(&mutex_);
      if (gone_ || finished_) return;
      gone_ = true;
      listener = std::exchange(listener_, nullptr);
      ResumeLocked();
    }
    if (listener) listener();
  }
  // The library is done with the request.
  void Detach(bool sent) {
    if (!sent) Leave();
    MutexLock lock(&mutex_);
    finished_ = true;
    connection_ = nullptr;
    listener_ = nullptr;
    source_ = nullptr;
    make_ = nullptr;
  }

  // Queues the answer, on the server's thread, after the library has called back for a resumed connection.
  MHD_Result Answer(MHD_Connection* connection);

 private:
  void SuspendLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (suspended_ || gone_ || connection_ == nullptr) return;
    suspended_ = true;
    MHD_suspend_connection(connection_);
  }
  void ResumeLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!suspended_ || connection_ == nullptr) return;
    suspended_ = false;
    MHD_resume_connection(connection_);
  }
  static ssize_t Read(void* self, uint64_t, char* buffer, size_t size) {
    return (*static_cast<std::shared_ptr<Pending>*>(self))->Fill(buffer, size);
  }
  static void Free(void* self) { delete static_cast<std::shared_ptr<Pending>*>(self); }
  ssize_t Fill(char* buffer, size_t size);

  const size_t max_body_bytes_;
  const int64_t max_buffered_bytes_;
  const std::shared_ptr<std::atomic<int64_t>> buffered_bytes_;  // of all exchanges; an exchange may outlive the server
  mutable Mutex mutex_;
  MHD_Connection* connection_ ABSL_GUARDED_BY(mutex_);  // null after Detach()
  Request request_;      // changes only before Suspend(), and when the handler has returned
  int64_t counted_ = 0;  // this exchange's part of *buffered_bytes_
  int refused_ = 0;
  std::string taken_;   // bytes of the source that are not written yet; used on the server's thread
  size_t written_ = 0;  // of taken_
  bool last_ = false;   // taken_ has the last bytes
  bool dispatched_ ABSL_GUARDED_BY(mutex_) = false;
  bool suspended_ ABSL_GUARDED_BY(mutex_) = false;
  bool awake_ ABSL_GUARDED_BY(mutex_) = false;  // the source may have bytes that were not taken
  bool gone_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<Response()> make_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<StreamSource> source_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> listener_ ABSL_GUARDED_BY(mutex_);
};

namespace {

MHD_Result Queue(MHD_Connection* connection, const Response& response) {
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): the library copies the bytes.
  MHD_Response* made = MHD_create_response_from_buffer(response.body.size(), const_cast<char*>(response.body.data()),
                                                       MHD_RESPMEM_MUST_COPY);
  if (made == nullptr) return MHD_NO;
  MHD_add_response_header(made, "Content-Type", response.content_type.c_str());
  for (const auto& [name, value] : response.headers) MHD_add_response_header(made, name.c_str(), value.c_str());
  const MHD_Result queued = MHD_queue_response(connection, static_cast<unsigned>(response.code), made);
  MHD_destroy_response(made);
  return queued;
}

}  // namespace

MHD_Result HttpServer::Pending::Answer(MHD_Connection* connection) {
  std::function<Response()> make;
  bool stream = false;
  {
    MutexLock lock(&mutex_);
    if (gone_) return MHD_NO;
    make = std::exchange(make_, nullptr);
    stream = source_ != nullptr;
    if (!make && !stream) {  // nothing to say yet: the library looked by itself
      SuspendLocked();
      return MHD_YES;
    }
  }
  if (!stream) return Queue(connection, make());
  auto* const self = new std::shared_ptr<Pending>(shared_from_this());
  MHD_Response* made = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, kBlockBytes, Read, self, Free);
  if (made == nullptr) {
    delete self;
    return MHD_NO;
  }
  MHD_add_response_header(made, "Content-Type", "text/event-stream; charset=utf-8");
  MHD_add_response_header(made, "Cache-Control", "no-store");
  const MHD_Result queued = MHD_queue_response(connection, MHD_HTTP_OK, made);
  MHD_destroy_response(made);
  return queued;
}

ssize_t HttpServer::Pending::Fill(char* buffer, size_t size) {
  while (true) {
    if (written_ < taken_.size()) {
      const size_t count = std::min(size, taken_.size() - written_);
      std::memcpy(buffer, taken_.data() + written_, count);
      written_ += count;
      return static_cast<ssize_t>(count);
    }
    if (last_) return MHD_CONTENT_READER_END_OF_STREAM;
    std::shared_ptr<StreamSource> source;
    {
      MutexLock lock(&mutex_);
      if (gone_) return MHD_CONTENT_READER_END_WITH_ERROR;
      awake_ = false;
      source = source_;
    }
    taken_.clear();
    written_ = 0;
    last_ = source->Take(&taken_);
    if (last_ || !taken_.empty()) continue;
    MutexLock lock(&mutex_);
    if (awake_ || gone_) continue;  // bytes came since Take() looked
    SuspendLocked();
    return 0;
  }
}

// What the library calls, all on the server's thread, except Connected.
struct HttpServer::Callbacks {
  static HttpServer* Server(void* self) { return static_cast<HttpServer*>(self); }

  static void Notify(void* self, MHD_Connection* connection, void**, MHD_ConnectionNotificationCode code) {
    HttpServer* const server = Server(self);
    const int fd = DescriptorOf(connection);
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
      server->SetDeadline(fd, server->options_.header_timeout, nullptr);
    } else {
      MutexLock lock(&server->mutex_);
      server->connections_.erase(fd);
    }
  }

  static void Completed(void* self, MHD_Connection* connection, void** context, MHD_RequestTerminationCode why) {
    auto* const exchange = static_cast<std::shared_ptr<Pending>*>(*context);
    if (exchange != nullptr) (*exchange)->Detach(why == MHD_REQUEST_TERMINATED_COMPLETED_OK);
    delete exchange;
    *context = nullptr;
    Server(self)->SetDeadline(DescriptorOf(connection), Server(self)->options_.idle_timeout, nullptr);
  }

  static MHD_Result Access(void* self, MHD_Connection* connection, const char* path, const char* method, const char*,
                           const char* data, size_t* size, void** context) {
    HttpServer* const server = Server(self);
    if (*context == nullptr) return Begin(server, connection, path, method, context);
    const std::shared_ptr<Pending> exchange = *static_cast<std::shared_ptr<Pending>*>(*context);
    if (*size > 0) {
      // What is over a limit is read and dropped: the library takes no answer before the body's end.
      exchange->Receive(data, *size);
      *size = 0;
      return MHD_YES;
    }
    if (exchange->dispatched()) return exchange->Answer(connection);
    if (exchange->refused() != 0) return Refuse(server, connection, exchange->refused());
    server->SetDeadline(DescriptorOf(connection), absl::InfiniteDuration(), exchange);
    if (!exchange->Suspend()) return MHD_NO;
    if (!server->Dispatch(exchange)) {
      exchange->Respond([server] {
        return Response{.code = 503,
                        .body = server->refusal_(503, "too many requests wait; try again"),
                        .headers = {{"Retry-After", "1"}}};
      });
    }
    return MHD_YES;
  }

  static MHD_Result Refuse(HttpServer* server, MHD_Connection* connection, int code) {
    const std::string message =
        code == 413 ? absl::StrCat("the body is longer than ", server->options_.max_body_bytes, " bytes")
                    : "requests that are being received use all the memory for them; try again";
    Response response = {.code = code, .body = server->refusal_(code, message)};
    if (code == 503) response.headers.emplace_back("Retry-After", "1");
    return Queue(connection, response);
  }

  // The headers are there.
  static MHD_Result Begin(HttpServer* server, MHD_Connection* connection, const char* path, const char* method,
                          void** context) {
    server->SetDeadline(DescriptorOf(connection), server->options_.body_timeout, nullptr);
    Request request = {.method = method,
                       .path = path,
                       .host = Header(connection, "Host"),
                       .authorization = Header(connection, "Authorization"),
                       .content_type = Header(connection, "Content-Type"),
                       .port = server->endpoint().port};
    Response judged = server->guard_(request);
    if (judged.code != 200) return Queue(connection, judged);
    // Such a pair is how requests are smuggled past proxies.
    const std::string length = Header(connection, "Content-Length");
    if (!length.empty() && HasHeader(connection, "Transfer-Encoding")) {
      return Queue(
          connection,
          {.code = 400, .body = server->refusal_(400, "Content-Length and Transfer-Encoding exclude each other")});
    }
    uint64_t bytes = 0;
    if (!length.empty() && (!absl::SimpleAtoi(length, &bytes) || bytes > server->options_.max_body_bytes)) {
      return Refuse(server, connection, 413);
    }
    *context = new std::shared_ptr<Pending>(std::make_shared<Pending>(*server, connection, std::move(request)));
    return MHD_YES;
  }
};

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const Options& options, Guard guard, Refusal refusal,
                                                              Handler handler) {
  SYNCOPATE_ASSIGN_OR_RETURN(const HostPort place, ParseListenAddress(options.address));
  std::unique_ptr<HttpServer> server(new HttpServer(options, std::move(guard), std::move(refusal), std::move(handler)));
  SYNCOPATE_ASSIGN_OR_RETURN(server->acceptor_, Acceptor::Listen(place));
  for (int i = 0; i < options.workers; ++i) server->workers_.push_back(std::make_unique<Worker>(kMaxWaiting));
  server->daemon_ =
      MHD_start_daemon(MHD_USE_EPOLL_INTERNAL_THREAD | MHD_USE_NO_LISTEN_SOCKET | MHD_ALLOW_SUSPEND_RESUME, 0, nullptr,
                       nullptr, &Callbacks::Access, server.get(),                                                //
                       MHD_OPTION_CONNECTION_LIMIT, static_cast<unsigned>(options.max_connections),              //
                       MHD_OPTION_CONNECTION_MEMORY_LIMIT, options.max_header_bytes,                             //
                       MHD_OPTION_CONNECTION_TIMEOUT,                                                            //
                       static_cast<unsigned>(std::max<int64_t>(1, absl::ToInt64Seconds(options.idle_timeout))),  //
                       MHD_OPTION_STRICT_FOR_CLIENT, 1,                                                          //
                       MHD_OPTION_NOTIFY_CONNECTION, &Callbacks::Notify, server.get(),                           //
                       MHD_OPTION_NOTIFY_COMPLETED, &Callbacks::Completed, server.get(), MHD_OPTION_END);
  if (server->daemon_ == nullptr) {
    return Error(absl::StatusCode::kResourceExhausted, "NO_HTTP_SERVER",
                 absl::StrCat("the HTTP server of ", options.what, " cannot start: ", std::strerror(errno)));
  }
  server->look_thread_ = std::thread([self = server.get()] { self->Look(); });
  server->acceptor_->Start([self = server.get()](int fd) {
    sockaddr_storage peer = {};
    socklen_t size = sizeof(peer);
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) {
      close(fd);
      return;
    }
    // The library owns fd, and closes it too if it has the most connections already.
    MHD_add_connection(self->daemon_, fd, reinterpret_cast<sockaddr*>(&peer), size);
  });
  return server;
}

HttpServer::~HttpServer() { Stop(); }

void HttpServer::Stop() {
  std::vector<std::shared_ptr<Pending>> left;
  {
    MutexLock lock(&mutex_);
    if (stopping_) return;
    stopping_ = true;
    for (const auto& [fd, connection] : connections_) {
      if (connection.exchange != nullptr) left.push_back(connection.exchange);
    }
  }
  acceptor_->Stop();
  if (look_thread_.joinable()) look_thread_.join();
  // The library can only end connections that are not suspended.
  for (const auto& exchange : left) exchange->Leave();
  left.clear();
  for (const auto& worker : workers_) worker->Stop();
  if (daemon_ != nullptr) MHD_stop_daemon(std::exchange(daemon_, nullptr));
}

void HttpServer::SetDeadline(int fd, absl::Duration from_now, std::shared_ptr<Pending> exchange) {
  MutexLock lock(&mutex_);
  Connection& connection = connections_[fd];
  connection.deadline = Clock::Real()->Now() + from_now;
  connection.exchange = std::move(exchange);
  // The list of exchanges that Stop() ends was made before this one.
  if (stopping_ && connection.exchange != nullptr) connection.exchange->Leave();
}

bool HttpServer::Dispatch(const std::shared_ptr<Pending>& exchange) {
  Worker& worker = *workers_[next_worker_++ % workers_.size()];
  return worker.Post([this, exchange] {
    handler_(exchange);
    exchange->DropBody();
  });
}

void HttpServer::Look() {
  const auto stopping = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; };
  while (true) {
    {
      MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(Condition(&stopping), kLookEvery)) return;
    }
    LookOnce();
  }
}

void HttpServer::LookOnce() {
  const absl::Time now = Clock::Real()->Now();
  std::vector<std::shared_ptr<Pending>> left;
  {
    // A descriptor in the map is open: the library tells of a connection's end before it closes it.
    MutexLock lock(&mutex_);
    for (auto& [fd, connection] : connections_) {
      if (now >= connection.deadline) shutdown(fd, SHUT_RDWR);
      if (connection.exchange != nullptr && HasLeft(fd)) left.push_back(connection.exchange);
    }
  }
  for (const auto& exchange : left) exchange->Leave();
}

}  // namespace syncopate::http
