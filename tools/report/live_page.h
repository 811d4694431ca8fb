#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/http/http_responder.h"
#include "base/mutex.h"
#include "syncopate/v1/synchronizer.pb.h"
#include "tools/report/run_history.h"

namespace syncopate::report {

// The page of a run that goes on, over HTTP on this machine alone: "/" is the page, "/new.json" what it polls. Making the
// page of a long run takes a fifth of a second, so that it is made once in kPageFor: what it lacks it polls. Nobody
// has to log in, so nothing but a loopback address is bound, and a request must name one as its Host: a page of some
// other site whose name was made to point here gets 421. Thread-safe, but for Stop.
class LivePage {
 public:
  static constexpr absl::Duration kPageFor = absl::Seconds(10);

  // `address`: a port, 0 for any free one, or a loopback address with one. INVALID_ARGUMENT (reason BAD_ADDRESS or
  // NOT_LOOPBACK), ALREADY_EXISTS (reason ADDRESS_IN_USE).
  static absl::StatusOr<std::unique_ptr<LivePage>> Start(const std::string& address,
                                                         const Clock* clock = Clock::Real());

  std::string url() const;  // "http://127.0.0.1:8080/"

  // What there is to begin with, instead of nothing.
  void SetHistory(RunHistory history);
  // As RunHistory's. A step is also a version that the trainer has made just now.
  void AddRecord(const records::StepRecord& record);
  // A sync that ended well adds its times, and the version to those of its rollouter.
  void AddSync(const v1::SyncRecord& record);
  void SetCheckpoints(const RunHistory::Checkpoints& checkpoints);
  void SetStatus(const std::string& status);  // "running" or "stopping"
  // The run is over: why, the end of the log of what failed, and summary.json.
  void SetEnd(const std::string& status, const std::string& reason, const std::vector<std::string>& log,
              nlohmann::json summary);
  // Blocks until a page that has polled of late has been given what was set last, at most for `timeout`; returns at once
  // if nobody looks. False if it has not been given.
  bool AwaitReaders(absl::Duration timeout);

  // Ends the service and joins its thread. Idempotent.
  void Stop() { responder_->Stop(); }

 private:
  explicit LivePage(const Clock* clock) : clock_(clock) {}
  std::string Answer(const HttpRequest& request);
  std::string Page();
  std::string News(const std::string& query);

  const Clock* const clock_;
  Mutex mutex_;
  RunHistory history_ ABSL_GUARDED_BY(mutex_);
  absl::Time polled_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  bool told_ ABSL_GUARDED_BY(mutex_) = true;  // somebody has polled since the status was set
  // Of the responder's thread alone.
  std::string page_;
  absl::Time page_made_ = absl::InfinitePast();
  std::unique_ptr<HttpResponder> responder_;  // last: its thread uses what is above
};

}  // namespace syncopate::report
