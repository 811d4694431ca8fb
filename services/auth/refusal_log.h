#pragma once

#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "base/mutex.h"

namespace syncopate::auth {

// Logs which peer was refused and why, at most once a second: a refused peer decides how often it tries. Thread-safe.
class RefusalLog {
 public:
  void Add(const std::string& refusal);
  int64_t count() const;  // all refusals that were added

 private:
  mutable Mutex mutex_;
  int64_t count_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t unsaid_ ABSL_GUARDED_BY(mutex_) = 0;  // refusals since the last line
  absl::Time next_line_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace syncopate::auth
