#include "rollouter/reward/http_scorer.h"

#include <curl/curl.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"

namespace syncopate::rollouter {
namespace {

constexpr long kConnectTimeoutMs = 5000;
constexpr int kPollMs = 1000;  // the longest sleep of the thread; new work wakes it earlier
// Of a request that a service refused, when it is sent again.
constexpr absl::Duration kTrialTimeout = absl::Minutes(1);
constexpr absl::Duration kLongestTrialPause = absl::Seconds(30);

absl::Status Away(const std::string& why) { return Error(absl::StatusCode::kUnavailable, "HTTP_AWAY", why); }

// True for errors which mean that the service is away. Any other error concerns one request, and counts as its failure.
bool IsOfTheConnection(CURLcode code) {
  return code == CURLE_COULDNT_CONNECT || code == CURLE_COULDNT_RESOLVE_HOST || code == CURLE_SSL_CONNECT_ERROR ||
         code == CURLE_PEER_FAILED_VERIFICATION;
}

// Whether the same request would get the same refusal again: the service says that the request is wrong, not that it is
// late (408), early (425) or one too many (429).
bool IsFinal(long http) { return http >= 400 && http <= 499 && http != 408 && http != 425 && http != 429; }

}  // namespace

absl::Status HttpScorer::Options::Validate() const {
  const bool good =
      !url.empty() && batch > 0 && connections > 0 && probe_every > absl::ZeroDuration() && max_response_bytes > 0;
  return good ? absl::OkStatus()
              : Error(absl::StatusCode::kInvalidArgument, "BAD_OPTIONS",
                      "HttpScorer: url must be given, and batch, connections, probe_every and max_response_bytes be "
                      "positive");
}

// The state that the callers and the thread share.
struct HttpScorer::Shared {
  struct Asked {
    RemoteItem item;
    Done done;
    absl::Time due;
  };

  Shared(int64_t most, const std::string& service_name)
      : capacity(most), service(service_name), there(Away(absl::StrCat(service_name, " was not reached yet"))) {}

  bool IsThere() const {
    MutexLock lock(&mutex);
    return there.ok();
  }
  void SetThere(const absl::Status& now) {
    std::shared_ptr<const std::function<void()>> tell;
    {
      MutexLock lock(&mutex);
      // The listener runs outside the lock: it may call Availability().
      if (there.ok() != now.ok()) tell = listener;
      there = now;
    }
    if (tell != nullptr) (*tell)();
  }
  // `answers` answers are no longer in progress.
  void Release(int64_t answers) {
    std::shared_ptr<const std::function<void()>> tell;
    {
      MutexLock lock(&mutex);
      // Only the step from full to not full changes the result of Availability().
      if (outstanding >= capacity) tell = listener;
      outstanding -= answers;
    }
    if (tell != nullptr) (*tell)();
  }

  const int64_t capacity;  // answers
  const std::string service;
  CURLM* const multi = curl_multi_init();  // only the thread uses it, except for curl_multi_wakeup
  mutable Mutex mutex;
  absl::Status there ABSL_GUARDED_BY(mutex);
  int64_t outstanding ABSL_GUARDED_BY(mutex) = 0;  // answers
  std::vector<Asked> asked ABSL_GUARDED_BY(mutex);
  std::vector<std::string> cancelled ABSL_GUARDED_BY(mutex);
  std::shared_ptr<const std::function<void()>> listener ABSL_GUARDED_BY(mutex);
  bool stopping ABSL_GUARDED_BY(mutex) = false;
};

// The thread's function and the state that only this thread uses.
class HttpScorer::Loop {
 public:
  Loop(Options options, std::shared_ptr<Shared> shared) : options_(std::move(options)), shared_(std::move(shared)) {}
  ~Loop() {
    while (!requests_.empty()) Close(requests_.begin()->first);
    curl_multi_cleanup(shared_->multi);
  }

  void Run() {
    while (TakeIn()) {
      const absl::Time now = Clock::Real()->Now();
      if (!shared_->IsThere() && !probing_ && now >= next_probe_) Probe(now);
      StartRequests(now);
      int running = 0;
      curl_multi_perform(shared_->multi, &running);
      FinishRequests();
      const bool probes = !shared_->IsThere() && !probing_;
      const absl::Duration sleep = probes ? next_probe_ - Clock::Real()->Now() : absl::Milliseconds(kPollMs);
      const int64_t ms = std::clamp<int64_t>(absl::ToInt64Milliseconds(sleep), 0, kPollMs);
      // A request that just ended has freed a slot: the next request starts without a sleep.
      if (StartableNow()) continue;
      curl_multi_poll(shared_->multi, nullptr, 0, static_cast<int>(ms), nullptr);
    }
  }

 private:
  // One answer of an item.
  struct Unit {
    std::string item;
    size_t index = 0;
  };
  struct Item {
    RemoteItem item;
    Done done;
    absl::Time due;
    Rewards rewards;
    size_t missing = 0;
  };
  struct Request {
    Request() = default;
    ~Request() { curl_slist_free_all(headers); }
    Request(const Request&) = delete;
    Request& operator=(const Request&) = delete;

    std::vector<Unit> units;        // empty: this is a probe
    std::vector<HttpAnswer> asked;  // empty: a probe that connects alone
    std::string token;              // that was shown
    std::string body;
    std::string response;
    curl_slist* headers = nullptr;  // owned
    int64_t max_response_bytes = 0;
  };

  bool StartableNow() const { return !waiting_.empty() && Running() < options_.connections; }
  int64_t Running() const { return static_cast<int64_t>(requests_.size()) - (probing_ ? 1 : 0); }

  // Takes over new items and cancellations. Returns false when the thread must stop.
  bool TakeIn() {
    std::vector<Shared::Asked> asked;
    std::vector<std::string> cancelled;
    {
      MutexLock lock(&shared_->mutex);
      if (shared_->stopping) return false;
      asked.swap(shared_->asked);
      cancelled.swap(shared_->cancelled);
    }
    for (Shared::Asked& one : asked) {
      const std::string id = one.item.id;
      const size_t answers = one.item.texts.size();
      items_[id] = {.item = std::move(one.item),
                    .done = std::move(one.done),
                    .due = one.due,
                    .rewards = Rewards(answers, absl::UnknownError("not judged")),
                    .missing = answers};
      for (size_t i = 0; i < answers; ++i) waiting_.push_back({id, i});
    }
    if (!cancelled.empty()) {
      // What has come by now is read: it may say what it cost.
      int running = 0;
      curl_multi_perform(shared_->multi, &running);
      FinishRequests();
    }
    for (const std::string& id : cancelled) {
      auto gone = items_.extract(id);
      // Answers in progress are dropped when they arrive: their item is no longer in `items_`.
      if (gone) shared_->Release(static_cast<int64_t>(gone.mapped().rewards.size()));
    }
    if (!cancelled.empty()) DropUnwanted();
    return true;
  }

  void DropUnwanted() {
    auto unwanted = [this](const Unit& unit) { return items_.count(unit.item) == 0; };
    waiting_.erase(std::remove_if(waiting_.begin(), waiting_.end(), unwanted), waiting_.end());
    std::vector<CURL*> idle;
    for (const auto& [easy, request] : requests_) {
      if (!request->units.empty() && std::all_of(request->units.begin(), request->units.end(), unwanted)) {
        idle.push_back(easy);
      }
    }
    for (CURL* easy : idle) NoteEnd(*Close(easy));
  }

  void StartRequests(absl::Time now) {
    while (StartableNow()) {
      auto request = std::make_unique<Request>();
      std::vector<HttpAnswer> answers;
      absl::Time due = absl::InfiniteFuture();
      // Answers of different groups share a request, which saves round trips.
      while (!waiting_.empty() && static_cast<int64_t>(answers.size()) < options_.batch) {
        Unit unit = std::move(waiting_.front());
        waiting_.pop_front();
        const Item& item = items_.at(unit.item);
        answers.push_back({item.item.row_json, item.item.texts[unit.index], item.item.finishes[unit.index]});
        // The request ends when its most urgent answer is late; GroupScore calls again for the others.
        due = std::min(due, item.due);
        request->units.push_back(std::move(unit));
      }
      request->asked = std::move(answers);
      if (const absl::Status headers = SetHeaders(request.get()); !headers.ok()) {
        if (ErrorReason(headers) == kScorerRefused)
          NoteRefusal(request.get(), headers, /*may_be_of_what_it_asks=*/false);
        Answer(*request, headers);
        continue;
      }
      Send(std::move(request), due - now);
    }
  }

  // Precondition: `asked` and the headers are set.
  void Send(std::unique_ptr<Request> request, absl::Duration limit) {
    request->body = options_.protocol.write(request->asked);
    CURL* easy = NewHandle(request.get());
    curl_easy_setopt(easy, CURLOPT_POSTFIELDS, request->body.c_str());
    curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request->body.size()));
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, request->headers);
    curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS,
                     static_cast<long>(std::max<int64_t>(1, absl::ToInt64Milliseconds(limit))));
    curl_multi_add_handle(shared_->multi, easy);
    requests_[easy] = std::move(request);
  }

  absl::Status SetHeaders(Request* request) const {
    std::string& token = request->token;
    if (options_.protocol.bearer) {
      absl::StatusOr<std::string> read = options_.protocol.bearer();
      if (!read.ok() && options_.protocol.refuse) return options_.protocol.refuse(std::string(read.status().message()));
      SYNCOPATE_ASSIGN_OR_RETURN(token, std::move(read));
    }
    request->headers = curl_slist_append(nullptr, "Content-Type: application/json");
    request->headers = curl_slist_append(request->headers, "Expect:");
    if (!token.empty()) {
      request->headers = curl_slist_append(request->headers, absl::StrCat("Authorization: Bearer ", token).c_str());
    }
    return absl::OkStatus();
  }

  // Opens a connection and sends nothing; but to a service that refused a request it may send that again.
  void Probe(absl::Time now) {
    next_probe_ = now + options_.probe_every;
    auto request = std::make_unique<Request>();
    if (!trial_.empty()) {
      request->asked = std::move(trial_);
      trial_.clear();
      if (const absl::Status headers = SetHeaders(request.get()); !headers.ok()) {
        return NoteRefusal(request.get(), headers, /*may_be_of_what_it_asks=*/false);
      }
      probing_ = true;
      return Send(std::move(request), kTrialTimeout);
    }
    CURL* easy = NewHandle(request.get());
    curl_easy_setopt(easy, CURLOPT_CONNECT_ONLY, 1L);
    curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, kConnectTimeoutMs);
    curl_multi_add_handle(shared_->multi, easy);
    requests_[easy] = std::move(request);
    probing_ = true;
  }

  CURL* NewHandle(Request* request) {
    request->max_response_bytes = options_.max_response_bytes;
    CURL* easy = curl_easy_init();
    curl_easy_setopt(easy, CURLOPT_URL, options_.url.c_str());
    // Only HTTP is allowed, whatever a configuration or a redirect says. The environment's proxy is ignored. Signals
    // are off, because libcurl's timeouts by signal are not safe with threads.
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_PROXY, "");
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, kConnectTimeoutMs);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, request);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, &Loop::AppendBody);
    return easy;
  }

  static size_t AppendBody(char* data, size_t size, size_t count, void* user) {
    auto* request = static_cast<Request*>(user);
    // A result of 0 makes libcurl end the transfer with an error, which bounds the memory.
    if (static_cast<int64_t>(request->response.size() + size * count) > request->max_response_bytes) return 0;
    request->response.append(data, size * count);
    return size * count;
  }

  void FinishRequests() {
    int left = 0;
    while (CURLMsg* message = curl_multi_info_read(shared_->multi, &left)) {
      if (message->msg != CURLMSG_DONE) continue;
      CURL* easy = message->easy_handle;
      const CURLcode code = message->data.result;
      long http = 0;
      curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &http);
      const std::unique_ptr<Request> request = Close(easy);
      NoteEnd(*request);
      absl::StatusOr<Rewards> rewards = Rewards();
      if (!request->asked.empty()) {
        if (code == CURLE_OK && http >= 200 && http <= 299) taken_token_ = request->token;
        rewards = Read(*request, code, http);
      }
      if (ErrorReason(rewards.status()) == kScorerRefused) {
        NoteRefusal(request.get(), rewards.status(), /*may_be_of_what_it_asks=*/http == 403);
      } else {
        NoteConnection(request.get(), code);
      }
      if (!request->units.empty()) Answer(*request, std::move(rewards));
    }
  }

  void NoteEnd(const Request& request) const {
    if (options_.protocol.ended && !request.asked.empty()) options_.protocol.ended(request.asked, request.response);
  }

  // The service is away until it does not refuse this request any more. If the reason may be what the request asks, it is
  // tried once alone: afterwards the service counts as there after each pause, and the next answers are the trial.
  void NoteRefusal(Request* request, const absl::Status& refusal, bool may_be_of_what_it_asks) {
    const bool was_trial = request->units.empty() || (others_are_tried_ && shared_->IsThere());
    others_are_tried_ = may_be_of_what_it_asks && (was_trial || others_are_tried_);
    trial_.clear();
    if (!others_are_tried_) trial_ = std::move(request->asked);
    next_probe_ = Clock::Real()->Now() + trial_pause_;
    if (was_trial) trial_pause_ = std::min(2 * trial_pause_, kLongestTrialPause);
    shared_->SetThere(refusal);
  }

  void NoteConnection(Request* request, CURLcode code) {
    if (code == CURLE_OK) {
      if (!request->asked.empty()) {
        trial_.clear();
        others_are_tried_ = false;
        trial_pause_ = options_.probe_every;
      }
      return shared_->SetThere(absl::OkStatus());
    }
    // A trial that came to nothing is made again.
    if (request->units.empty() && trial_.empty()) trial_ = std::move(request->asked);
    if (!IsOfTheConnection(code)) return;
    next_probe_ = Clock::Real()->Now() + options_.probe_every;
    shared_->SetThere(Away(absl::StrCat(options_.protocol.service, " at ", options_.url,
                                        " cannot be reached: ", curl_easy_strerror(code))));
  }

  absl::StatusOr<Rewards> Read(const Request& request, CURLcode code, long http) const {
    if (code != CURLE_OK) {
      const absl::StatusCode why =
          code == CURLE_OPERATION_TIMEDOUT ? absl::StatusCode::kDeadlineExceeded : absl::StatusCode::kUnavailable;
      return Error(why, "HTTP_FAILED", absl::StrCat("POST ", options_.url, ": ", curl_easy_strerror(code)));
    }
    if (http < 200 || http > 299) {
      const std::string why = options_.protocol.explain ? options_.protocol.explain(request.response) : "";
      const std::string what = absl::StrCat("POST ", options_.url, " gave ", http, why.empty() ? "" : ": ", why);
      // A service that has taken this token means what was asked: one that moderates says so of a single prompt.
      const bool is_of_the_token = http == 401 || (http == 403 && taken_token_ != request.token);
      if (is_of_the_token && options_.protocol.refuse) return options_.protocol.refuse(what);
      return Error(IsFinal(http) ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kUnavailable, "HTTP_STATUS",
                   what);
    }
    return options_.protocol.read(request.response, request.asked.size());
  }

  void Answer(const Request& request, absl::StatusOr<Rewards> rewards) {
    for (size_t i = 0; i < request.units.size(); ++i) {
      auto found = items_.find(request.units[i].item);
      if (found == items_.end()) continue;
      Item& item = found->second;
      item.rewards[request.units[i].index] = rewards.ok() ? (*rewards)[i] : rewards.status();
      if (--item.missing > 0) continue;
      // The item leaves the map before `done` runs: `done` may call Score for the next one.
      const Item ended = std::move(item);
      items_.erase(found);
      ended.done(ended.rewards);
      shared_->Release(static_cast<int64_t>(ended.rewards.size()));
    }
  }

  std::unique_ptr<Request> Close(CURL* easy) {
    curl_multi_remove_handle(shared_->multi, easy);
    curl_easy_cleanup(easy);
    auto request = requests_.extract(easy);
    if (request.mapped()->units.empty()) probing_ = false;
    return std::move(request.mapped());
  }

  const Options options_;
  const std::shared_ptr<Shared> shared_;
  std::map<std::string, Item> items_;
  std::deque<Unit> waiting_;
  std::map<CURL*, std::unique_ptr<Request>> requests_;
  bool probing_ = false;
  absl::Time next_probe_ = absl::InfinitePast();
  std::vector<HttpAnswer> trial_;  // of the last request that the service refused, to be sent again; empty: none
  bool others_are_tried_ = false;  // a trial was refused for what may be its own: other answers are tried
  std::optional<std::string> taken_token_;  // of the last request that had a response with a code of 2xx
  absl::Duration trial_pause_ = options_.probe_every;
};

absl::StatusOr<std::unique_ptr<HttpScorer>> HttpScorer::Start(const Options& options) {
  SYNCOPATE_RETURN_IF_ERROR(options.Validate());
  static const CURLcode started = curl_global_init(CURL_GLOBAL_DEFAULT);  // libcurl wants this once per process
  auto shared = std::make_shared<Shared>(options.batch * options.connections, options.protocol.service);
  if (started != CURLE_OK || shared->multi == nullptr) {
    return Error(absl::StatusCode::kUnavailable, "NO_CURL", "libcurl cannot start");
  }
  auto loop = std::make_unique<Loop>(options, shared);
  return std::unique_ptr<HttpScorer>(new HttpScorer(std::move(shared), std::move(loop)));
}

HttpScorer::HttpScorer(std::shared_ptr<Shared> shared, std::unique_ptr<Loop> loop)
    : shared_(std::move(shared)), loop_(std::move(loop)), thread_([this] { loop_->Run(); }) {}

HttpScorer::~HttpScorer() {
  {
    MutexLock lock(&shared_->mutex);
    shared_->stopping = true;
  }
  curl_multi_wakeup(shared_->multi);
  thread_.join();
}

absl::Status HttpScorer::Availability(const std::string&) const {
  MutexLock lock(&shared_->mutex);
  if (!shared_->there.ok() || shared_->outstanding < shared_->capacity) return shared_->there;
  return Error(absl::StatusCode::kResourceExhausted, "HTTP_BUSY",
               absl::StrCat(shared_->outstanding, " answers are with ", shared_->service, " already"));
}

void HttpScorer::Score(RemoteItem item, Done done) {
  const absl::Time due = Clock::Real()->Now() + item.budget;
  {
    MutexLock lock(&shared_->mutex);
    shared_->outstanding += static_cast<int64_t>(item.texts.size());
    shared_->asked.push_back({std::move(item), std::move(done), due});
  }
  curl_multi_wakeup(shared_->multi);
}

void HttpScorer::Cancel(const std::string& id) {
  {
    MutexLock lock(&shared_->mutex);
    shared_->cancelled.push_back(id);
  }
  curl_multi_wakeup(shared_->multi);
}

void HttpScorer::SetAvailabilityListener(std::function<void()> changed) {
  MutexLock lock(&shared_->mutex);
  shared_->listener = changed == nullptr ? nullptr : std::make_shared<const std::function<void()>>(std::move(changed));
}

}  // namespace syncopate::rollouter
