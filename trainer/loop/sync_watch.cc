#include "trainer/loop/sync_watch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"

namespace syncopate::trainer {

SyncWatch::SyncWatch(Options options) : options_(std::move(options)), thread_([this] { Run(); }) {}

SyncWatch::~SyncWatch() { Stop(); }

void SyncWatch::Stop() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void SyncWatch::Run() {
  SyncPatience patience(options_.give_up_after);
  while (!AwaitStop()) {
    absl::StatusOr<SyncPatience::Tally> tally = options_.count();
    if (!tally.ok()) continue;
    absl::Status verdict = patience.Observe(*tally, Clock::Real()->Now());
    failing_ = patience.failing_since() < absl::InfiniteFuture();
    if (verdict.ok()) continue;
    const std::string why = options_.why_failed();
    if (!why.empty()) verdict = Error(verdict.code(), ErrorReason(verdict), absl::StrCat(verdict.message(), ": ", why));
    options_.on_failing(verdict);
    return;
  }
}

bool SyncWatch::AwaitStop() {
  MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(Condition(&stopping_), std::min(options_.poll, options_.give_up_after / 10));
}

}  // namespace syncopate::trainer
