#include "services/gateway/upstream.h"

#include <curl/curl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <functional>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status.h"

namespace syncopate::gateway {

// One request under way.
struct Transfer {
  Transfer() = default;
  ~Transfer() {
    curl_slist_free_all(headers);
    curl_easy_cleanup(easy);
  }
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  uint64_t id = 0;
  CURL* easy = curl_easy_init();
  curl_slist* headers = nullptr;
  UpstreamRequest request;
  std::shared_ptr<UpstreamListener> listener;
  UpstreamHead head;
  bool head_told = false;
};

namespace {

constexpr int kPollMs = 1000;  // the longest sleep of the thread; commands wake it earlier
constexpr long kIdleConnections = 1024;
constexpr unsigned kUnacknowledgedMs = 30000;  // a host that acknowledges nothing for so long is gone
constexpr absl::string_view kPassedHeaders[] = {"Retry-After", "WWW-Authenticate", "Allow"};

// TCP's keepalive does not look at a connection with bytes that are not acknowledged.
int LimitUnacknowledged(void*, curl_socket_t socket, curlsocktype) {
  setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &kUnacknowledgedMs, sizeof(kUnacknowledgedMs));
  return CURL_SOCKOPT_OK;
}

void AddHeader(Transfer* transfer, const std::string& line) {
  transfer->headers = curl_slist_append(transfer->headers, line.c_str());
}

void TellHead(Transfer* transfer) {
  if (std::exchange(transfer->head_told, true)) return;
  long code = 0;
  curl_easy_getinfo(transfer->easy, CURLINFO_RESPONSE_CODE, &code);
  const char* type = nullptr;
  curl_easy_getinfo(transfer->easy, CURLINFO_CONTENT_TYPE, &type);
  transfer->head.code = static_cast<int>(code);
  transfer->head.content_type = type == nullptr ? "" : type;
  transfer->listener->OnHead(transfer->head);
}

size_t ReadHeader(char* data, size_t size, size_t count, void* user) {
  auto* const transfer = static_cast<Transfer*>(user);
  const absl::string_view line(data, size * count);
  if (absl::StartsWith(line, "HTTP/")) transfer->head.headers.clear();  // of a 100 Continue, if there was one
  const size_t colon = line.find(':');
  if (colon == absl::string_view::npos) return size * count;
  for (const absl::string_view name : kPassedHeaders) {
    if (!absl::EqualsIgnoreCase(line.substr(0, colon), name)) continue;
    transfer->head.headers.emplace_back(std::string(name),
                                        std::string(absl::StripAsciiWhitespace(line.substr(colon + 1))));
  }
  return size * count;
}

size_t ReadBody(char* data, size_t size, size_t count, void* user) {
  auto* const transfer = static_cast<Transfer*>(user);
  TellHead(transfer);
  if (!transfer->listener->OnBody(absl::string_view(data, size * count))) return CURL_WRITEFUNC_PAUSE;
  return size * count;
}

absl::Status EndStatus(CURLcode code, const std::string& url) {
  if (code == CURLE_OK) return absl::OkStatus();
  const bool unreachable =
      code == CURLE_COULDNT_CONNECT || code == CURLE_COULDNT_RESOLVE_HOST || code == CURLE_OPERATION_TIMEDOUT;
  return Error(absl::StatusCode::kUnavailable, unreachable ? "UNREACHABLE" : "UPSTREAM_FAILED",
               absl::StrCat(url, ": ", curl_easy_strerror(code)));
}

}  // namespace

struct Upstream::Shared {
  CURLM* const multi = curl_multi_init();  // only the thread uses it, except for curl_multi_wakeup
  Mutex mutex;
  uint64_t last_id ABSL_GUARDED_BY(mutex) = 0;
  std::vector<std::function<void()>> commands ABSL_GUARDED_BY(mutex);
  bool stopping ABSL_GUARDED_BY(mutex) = false;
};

// The thread's function and the state that only this thread uses.
class Upstream::Loop {
 public:
  Loop(const Options& options, std::shared_ptr<Shared> shared) : options_(options), shared_(std::move(shared)) {
    curl_multi_setopt(shared_->multi, CURLMOPT_MAXCONNECTS, kIdleConnections);
  }
  ~Loop() {
    for (const auto& [id, transfer] : transfers_) curl_multi_remove_handle(shared_->multi, transfer->easy);
    transfers_.clear();
    curl_multi_cleanup(shared_->multi);
  }

  void Run() {
    while (true) {
      std::vector<std::function<void()>> commands;
      {
        MutexLock lock(&shared_->mutex);
        if (shared_->stopping) return;
        commands.swap(shared_->commands);
      }
      for (const auto& command : commands) command();
      int running = 0;
      curl_multi_perform(shared_->multi, &running);
      FinishTransfers();
      curl_multi_poll(shared_->multi, nullptr, 0, kPollMs, nullptr);
    }
  }

  void Begin(std::unique_ptr<Transfer> transfer) {
    CURL* const easy = transfer->easy;
    const UpstreamRequest& request = transfer->request;
    AddHeader(transfer.get(), "Expect:");
    if (!request.authorization.empty()) AddHeader(transfer.get(), "Authorization: " + request.authorization);
    // An empty value keeps libcurl from sending one of its own.
    AddHeader(transfer.get(), request.content_type.empty() ? "Content-Type:" : "Content-Type: " + request.content_type);
    curl_easy_setopt(easy, CURLOPT_URL, request.url.c_str());
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, transfer->headers);
    if (request.method == "POST") {
      curl_easy_setopt(easy, CURLOPT_POSTFIELDS, request.body->c_str());
      curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body->size()));
    }
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);
    curl_easy_setopt(easy, CURLOPT_PROXY, "");
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS,
                     static_cast<long>(absl::ToInt64Milliseconds(options_.connect_timeout)));
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPIDLE, 10L);
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPINTVL, 2L);
    curl_easy_setopt(easy, CURLOPT_SOCKOPTFUNCTION, &LimitUnacknowledged);
    curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, &ReadHeader);
    curl_easy_setopt(easy, CURLOPT_HEADERDATA, transfer.get());
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, &ReadBody);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, transfer.get());
    curl_easy_setopt(easy, CURLOPT_PRIVATE, transfer.get());
    curl_multi_add_handle(shared_->multi, easy);
    transfers_[transfer->id] = std::move(transfer);
  }

  void Resume(uint64_t id) {
    const auto found = transfers_.find(id);
    if (found != transfers_.end()) curl_easy_pause(found->second->easy, CURLPAUSE_CONT);
  }

  void Cancel(uint64_t id) {
    const auto found = transfers_.find(id);
    if (found == transfers_.end()) return;
    curl_multi_remove_handle(shared_->multi, found->second->easy);
    transfers_.erase(found);
  }

 private:
  void FinishTransfers() {
    int left = 0;
    while (CURLMsg* message = curl_multi_info_read(shared_->multi, &left)) {
      if (message->msg != CURLMSG_DONE) continue;
      Transfer* transfer = nullptr;
      curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &transfer);
      const CURLcode code = message->data.result;
      curl_multi_remove_handle(shared_->multi, transfer->easy);
      const auto ended = transfers_.extract(transfer->id);
      if (code == CURLE_OK) TellHead(transfer);
      transfer->listener->OnEnd(EndStatus(code, transfer->request.url));
    }
  }

  const Options options_;
  const std::shared_ptr<Shared> shared_;
  std::map<uint64_t, std::unique_ptr<Transfer>> transfers_;
};

absl::StatusOr<std::unique_ptr<Upstream>> Upstream::Start(const Options& options) {
  static const CURLcode started = curl_global_init(CURL_GLOBAL_DEFAULT);  // libcurl wants this once per process
  auto shared = std::make_shared<Shared>();
  if (started != CURLE_OK || shared->multi == nullptr) {
    return Error(absl::StatusCode::kUnavailable, "NO_CURL", "libcurl cannot start");
  }
  auto loop = std::make_unique<Loop>(options, shared);
  return std::unique_ptr<Upstream>(new Upstream(std::move(shared), std::move(loop)));
}

Upstream::Upstream(std::shared_ptr<Shared> shared, std::unique_ptr<Loop> loop)
    : shared_(std::move(shared)), loop_(std::move(loop)), thread_([this] { loop_->Run(); }) {}

Upstream::~Upstream() {
  {
    MutexLock lock(&shared_->mutex);
    shared_->stopping = true;
    shared_->commands.clear();
  }
  curl_multi_wakeup(shared_->multi);
  thread_.join();
}

uint64_t Upstream::Begin(UpstreamRequest request, std::shared_ptr<UpstreamListener> listener) {
  // Shared because std::function requires a copyable callable.
  auto transfer = std::make_shared<std::unique_ptr<Transfer>>(std::make_unique<Transfer>());
  (*transfer)->request = std::move(request);
  (*transfer)->listener = std::move(listener);
  uint64_t id = 0;
  {
    MutexLock lock(&shared_->mutex);
    id = (*transfer)->id = ++shared_->last_id;
    shared_->commands.push_back([this, transfer] { loop_->Begin(std::move(*transfer)); });
  }
  curl_multi_wakeup(shared_->multi);
  return id;
}

void Upstream::Resume(uint64_t id) {
  {
    MutexLock lock(&shared_->mutex);
    shared_->commands.push_back([this, id] { loop_->Resume(id); });
  }
  curl_multi_wakeup(shared_->multi);
}

void Upstream::Cancel(uint64_t id) {
  {
    MutexLock lock(&shared_->mutex);
    shared_->commands.push_back([this, id] { loop_->Cancel(id); });
  }
  curl_multi_wakeup(shared_->multi);
}

}  // namespace syncopate::gateway
