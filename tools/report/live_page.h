#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "base/http/http_responder.h"
#include "base/mutex.h"
#include "syncopate/v1/synchronizer.pb.h"
#include "tools/report/run_history.h"

namespace syncopate::report {

// The page of a run that goes on, over HTTP on this machine alone: "/" is the page, "/new.json" what it polls. Nobody
// has to log in, so nothing but a loopback address is bound, and a request must name one as its Host: a page of some
// other site whose name was made to point here gets 421. Thread-safe, but for Stop.
class LivePage {
 public:
  // `address`: a port, 0 for any free one, or a loopback address with one. INVALID_ARGUMENT (reason BAD_ADDRESS or
  // NOT_LOOPBACK), ALREADY_EXISTS (reason ADDRESS_IN_USE).
  static absl::StatusOr<std::unique_ptr<LivePage>> Start(const std::string& address);

  std::string url() const;  // "http://127.0.0.1:8080/"

  // What there is to begin with, instead of nothing.
  void SetHistory(RunHistory history);
  // As RunHistory's. A step is also a version that the trainer has made just now.
  void AddRecord(const records::StepRecord& record);
  // A sync that ended well adds its times, and the version to those of its rollouter.
  void AddSync(const v1::SyncRecord& record);
  // "running", "stopping" and so on; `reason`: why it failed.
  void SetStatus(const std::string& status, const std::string& reason);

  // Ends the service and joins its thread. Idempotent.
  void Stop() { responder_->Stop(); }

 private:
  LivePage() = default;
  std::string Answer(const HttpRequest& request) const;

  mutable Mutex mutex_;
  RunHistory history_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<HttpResponder> responder_;  // last: its thread uses what is above
};

}  // namespace syncopate::report
