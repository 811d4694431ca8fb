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
#include "rollouter/reward/remote_scorer.h"

namespace syncopate::rollouter {

// Gets rewards from an HTTP service: one POST carries answers of several groups, and several requests are in progress,
// on one thread that drives libcurl's multi interface. The time limit of a request is that of its most urgent answer.
// `HttpScorer` does not retry: a request that fails, by its connection or by a status outside 2xx, fails its answers,
// and `GroupScore` calls again. Redirects are not followed, the environment's proxy is not used, certificates are
// verified.
//
// The service counts as away at the start and after a failed connection, until a connection succeeds; a probe tries to
// connect every `probe_every`. Thread-safe.
class HttpScorer final : public RemoteScorer {
 public:
  struct Options {
    std::string url;
    int64_t batch = 64;       // the largest number of answers in one request
    int64_t connections = 8;  // the largest number of requests in progress
    absl::Duration probe_every = absl::Seconds(1);
    int64_t max_response_bytes = 16 << 20;
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
