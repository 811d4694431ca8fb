#pragma once

#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "base/mutex.h"

namespace syncopate::auth {

// Says in the log who was refused and why, at most once a second: whoever is refused decides how often they try.
// Thread-safe.
class RefusalLog {
 public:
  void Add(const std::string& refusal);
  int64_t count() const;  // of all that were added

 private:
  mutable Mutex mutex_;
  int64_t count_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t unsaid_ ABSL_GUARDED_BY(mutex_) = 0;  // since the last line
  absl::Time next_line_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace syncopate::auth
