#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/status.h"
#include "rollouter/reward/http_messages.h"
#include "rollouter/reward/remote_scorer.h"

namespace syncopate::rollouter {

// Gets rewards from an HTTP service: one POST carries answers of several groups, and several requests are in progress,
// on one thread that drives libcurl's multi interface. The time limit of a request is that of its most urgent answer.
// `HttpScorer` does not retry: a request that fails, by its connection or by a status outside 2xx, fails its answers,
// and `GroupScore` calls again, unless the status is 4xx other than 408, 425 and 429 (INVALID_ARGUMENT). Redirects are
// not followed, the environment's proxy is not used, certificates are verified.
//
// The service counts as away at the start and after a failed connection, until a connection succeeds; a probe tries to
// connect every `probe_every`. With Protocol::refuse it also counts as away while it refuses this client: the refused
// request is then sent again, alone and less and less often, until another response comes. After a 403, which may be about
// one prompt, it is sent again once; then the service counts as there after each pause, so that other answers are tried.
// Thread-safe.
class HttpScorer final : public RemoteScorer {
 public:
  // What is sent and how the response is read. All of it runs on the scorer's thread and must not block for long.
  struct Protocol {
    std::string service = "the reward service";  // its name in errors
    std::function<std::string(const std::vector<HttpAnswer>&)> write = HttpRequestBody;
    // One reward per answer, or an error of all, from the body of a response with a code of 2xx.
    std::function<absl::StatusOr<Rewards>(absl::string_view body, size_t answers)> read = ParseHttpResponse;
    // What the body of a response with another code says, for the error; null: nothing.
    std::function<std::string(absl::string_view body)> explain = nullptr;
    // The bearer token of the next request; null or "": none. An error fails the request's answers, or is a refusal.
    std::function<absl::StatusOr<std::string>()> bearer = nullptr;
    // The error, of reason kScorerRefused, for a service that refuses this client with 401, or with 403 before a request
    // with this token had a response with a code of 2xx, or for which there is no token; `what` says which. Null: such a
    // response fails its answers as others do.
    std::function<absl::Status(const std::string& what)> refuse = nullptr;
    // Called for each request that was sent, when it has ended, before its answers are: with what was asked and as much
    // of the body as came, also if it was cancelled or its time was over. Null: nothing.
    std::function<void(const std::vector<HttpAnswer>& asked, absl::string_view body)> ended = nullptr;
  };
  struct Options {
    std::string url;
    int64_t batch = 64;       // the largest number of answers in one request
    int64_t connections = 8;  // the largest number of requests in progress
    absl::Duration probe_every = absl::Seconds(1);
    int64_t max_response_bytes = 16 << 20;
    Protocol protocol = {};         // of docs/rewards.md, "An HTTP service"
    absl::Status Validate() const;  // INVALID_ARGUMENT (reason BAD_OPTIONS)
  };

  // UNAVAILABLE (reason NO_CURL) if libcurl cannot start.
  static absl::StatusOr<std::unique_ptr<HttpScorer>> Start(const Options& options);
  ~HttpScorer() override;  // Stops the thread and drops what is in progress without calling `done`

  absl::Status Availability(const std::string& reward) const override;
  void Score(RemoteItem item, Done done) override;
  void Cancel(const std::string& id) override;
  void SetAvailabilityListener(std::function<void()> changed) override;

 private:
  class Loop;
  struct Shared;

  HttpScorer(std::shared_ptr<Shared> shared, std::unique_ptr<Loop> loop);

  const std::shared_ptr<Shared> shared_;
  const std::unique_ptr<Loop> loop_;
  std::thread thread_;
};

}  // namespace syncopate::rollouter
