#pragma once

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status.h"

namespace syncopate::rollouterd {

// The digest of users' Python that all workers of a run have. Thread-safe.
class WorkerDigest {
 public:
  // `digest`: the run's; "": that of the first worker that is checked.
  explicit WorkerDigest(std::string digest) : digest_(std::move(digest)) {}

  // FAILED_PRECONDITION (reason WRONG_DIGEST) if the worker at `address` has other code.
  absl::Status Check(const std::string& address, const std::string& found) {
    MutexLock lock(&mutex_);
    if (digest_.empty()) digest_ = found;
    if (digest_ == found) return absl::OkStatus();
    return Error(absl::StatusCode::kFailedPrecondition, "WRONG_DIGEST",
                 absl::StrCat("the worker at ", address, " runs code of digest ", found,
                              ", and the run was begun with ", digest_,
                              "; start the worker with the code of the run, or end the run and resume it with "
                              "--accept-reward-change"));
  }

 private:
  Mutex mutex_;
  std::string digest_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncopate::rollouterd
