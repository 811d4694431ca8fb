#include "trainer/loop/version_publisher.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/backoff.h"
#include "base/log.h"

namespace syncopate::trainer {
namespace {

constexpr absl::Duration kFirstBackoff = absl::Milliseconds(50);
constexpr absl::Duration kLongestBackoff = absl::Seconds(1);

}  // namespace

VersionPublisher::VersionPublisher(Options options) : options_(std::move(options)), thread_([this] { Run(); }) {}

VersionPublisher::~VersionPublisher() { Stop(); }

void VersionPublisher::Publish(Publication publication) {
  MutexLock lock(&mutex_);
  pending_ = std::move(publication);
}

void VersionPublisher::Stop() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void VersionPublisher::Run() {
  absl::Duration backoff = kFirstBackoff;
  while (true) {
    Publication publication;
    {
      MutexLock lock(&mutex_);
      auto wanted = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || pending_.has_value(); };
      mutex_.Await(Condition(&wanted));
      if (stopping_) return;
      publication = *std::exchange(pending_, std::nullopt);
    }
    const absl::Status status = options_.tell(publication);
    if (status.ok()) {
      backoff = kFirstBackoff;
      continue;
    }
    if (IsRefusal(status)) {
      options_.on_refused(
          Annotate(status, absl::StrCat("the synchronizer refused version ", publication.version.ToString())));
      return;
    }
    SYNCOPATE_LOG(kWarning, "version %s is not published yet: %s", publication.version.ToString(), status.ToString());
    MutexLock lock(&mutex_);
    auto newer = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || pending_.has_value(); };
    if (!mutex_.AwaitWithTimeout(Condition(&newer), backoff)) pending_ = std::move(publication);
    backoff = std::min(2 * backoff, kLongestBackoff);
  }
}

}  // namespace syncopate::trainer
