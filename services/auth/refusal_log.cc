#include "services/auth/refusal_log.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"

namespace syncopate::auth {

void RefusalLog::Add(const std::string& refusal) {
  int64_t unsaid = 0;
  {
    MutexLock lock(&mutex_);
    ++count_;
    const absl::Time now = Clock::Real()->Now();
    if (now < next_line_) {
      ++unsaid_;
      return;
    }
    // A refused peer decides how often it tries, so it must not decide how fast the log grows.
    next_line_ = now + absl::Seconds(1);
    unsaid = std::exchange(unsaid_, 0);
  }
  const std::string more = unsaid == 0 ? "" : absl::StrCat("; and ", unsaid, " refusals since the last such line");
  SYNCOPATE_LOG(kWarning, "security: refused %s%s", refusal, more);
}

int64_t RefusalLog::count() const {
  MutexLock lock(&mutex_);
  return count_;
}

}  // namespace syncopate::auth
