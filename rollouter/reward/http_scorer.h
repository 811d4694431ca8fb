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

// Rewards from an HTTP service: answers of several groups in one POST, several requests under way, on one thread of
// libcurl's multi interface. Every request has the budget of its most urgent answer. It does not retry: a request that
// fails, by its connection or by a status that is not 2xx, fails its answers, and GroupScore asks again. Nobody is
// followed elsewhere, no proxy of the environment is used, certificates are checked.
//
// The service is away from the start, and after a connection that failed, until a connection is made; that is tried
// every probe_every.
class HttpScorer final : public RemoteScorer {
 public:
  struct Options {
    std::string url;
    int64_t batch = 64;       // answers of one request
    int64_t connections = 8;  // requests under way
    absl::Duration probe_every = absl::Seconds(1);
    int64_t max_response_bytes = 16 << 20;
    absl::Status Validate() const;  // INVALID_ARGUMENT (reason BAD_OPTIONS)
  };

  // UNAVAILABLE (reason NO_CURL) if libcurl cannot start.
  static absl::StatusOr<std::unique_ptr<HttpScorer>> Start(const Options& options);
  ~HttpScorer() override;  // ends what is under way; its callers do not hear of it

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
