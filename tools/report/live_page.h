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

// The page of a running run, over HTTP on this machine only: "/" is the page, "/new.json" the updates that it polls,
// "/samples.json" the samples that it looks for (tools/report/sample_search.h), read from the run directory.
// Making the page of a long run takes a fifth of a second, so it is made again only after kPageFor; the page polls what
// it lacks. There is no login, so only a loopback address is bound, and a request must name one as its Host: a page of
// another site whose host name was made to point here gets 421. Thread-safe, except Stop.
class LivePage {
 public:
  static constexpr absl::Duration kPageFor = absl::Seconds(10);

  // `address`: a port (0 for any free one), or a loopback address with a port. INVALID_ARGUMENT (reason BAD_ADDRESS or
  // NOT_LOOPBACK), ALREADY_EXISTS (reason ADDRESS_IN_USE).
  static absl::StatusOr<std::unique_ptr<LivePage>> Start(const std::string& address,
                                                         const Clock* clock = Clock::Real());

  std::string url() const;  // "http://127.0.0.1:8080/"

  // Sets the run directory whose samples are shown; otherwise there are none. Call before the first request for them.
  void SetRunDir(const std::string& run_dir);
  // Sets the initial history, which is otherwise empty.
  void SetHistory(RunHistory history);
  // RunHistory::AddRecord; a step is also added as a version that the trainer has made just now.
  void AddRecord(const records::StepRecord& record);
  // Adds the times of a successful sync, and its version to those of its rollouter.
  void AddSync(const v1::SyncRecord& record);
  void SetCheckpoints(const RunHistory::Checkpoints& checkpoints);
  void SetStatus(const std::string& status);  // "running" or "stopping"
  // Sets the end of the run: the reason, the end of the log of the process that failed, and summary.json.
  void SetEnd(const std::string& status, const std::string& reason, const std::vector<std::string>& log,
              nlohmann::json summary);
  // Blocks until a page that has polled recently has got the newest state, at most for `timeout`; returns at once if no
  // page polls. False if no page has got it.
  bool AwaitReaders(absl::Duration timeout);

  // Ends the server and joins its thread. Idempotent.
  void Stop() { responder_->Stop(); }

 private:
  explicit LivePage(const Clock* clock) : clock_(clock) {}
  std::string Answer(const HttpRequest& request);
  std::string Page();
  std::string News(const std::string& query);
  // The whole response; blocks the server for SampleSearch::within at most, or for as long as the disk does.
  std::string Samples(const std::string& query, const std::vector<std::string>& headers);

  const Clock* const clock_;
  Mutex mutex_;
  RunHistory history_ ABSL_GUARDED_BY(mutex_);
  std::string run_dir_ ABSL_GUARDED_BY(mutex_);
  absl::Time polled_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  bool told_ ABSL_GUARDED_BY(mutex_) = true;  // whether a page has polled since SetEnd
  // Used on the responder's thread only.
  std::string page_;
  absl::Time page_made_ = absl::InfinitePast();
  std::unique_ptr<HttpResponder> responder_;  // last: its thread uses the members above
};

}  // namespace syncopate::report
