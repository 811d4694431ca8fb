#include "services/rollouter/spread_environment.h"

#include <algorithm>

#include "base/log.h"

namespace syncopate::rollouterd {

using rollouter::EnvironmentMessage;
using rollouter::RemoteEpisode;

namespace {

// A connection that is there knows that it has no environment without a name.
bool IsThere(const rollouter::RemoteEnvironment& play) {
  const absl::Status status = play.Availability("");
  return status.ok() || absl::IsNotFound(status);
}

}  // namespace

std::shared_ptr<SpreadEnvironment> SpreadEnvironment::Start(Options options) {
  std::shared_ptr<SpreadEnvironment> spread(new SpreadEnvironment(std::move(options)));
  std::shared_ptr<Held> first = spread->Begin();
  MutexLock lock(&spread->mutex_);
  spread->newest_ = std::move(first);
  spread->RenewLaterLocked();
  return spread;
}

SpreadEnvironment::~SpreadEnvironment() { Stop(); }

std::shared_ptr<SpreadEnvironment::Held> SpreadEnvironment::Begin() {
  auto held = std::make_shared<Held>();
  held->connection = options_.connect();
  held->connection.play->SetAvailabilityListener([weak = weak_from_this()] {
    if (auto self = weak.lock()) self->NotifyListener();
  });
  return held;
}

void SpreadEnvironment::RenewLaterLocked() {
  if (stopping_ || options_.renew_every == absl::InfiniteDuration()) return;
  timer_.Set(options_.renew_every, [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->Renew();
  });
}

void SpreadEnvironment::Renew() {
  {
    MutexLock lock(&mutex_);
    if (stopping_) return;
    if (next_ != nullptr && IsThere(*next_->connection.play)) {
      older_.push_back(std::exchange(newest_, std::exchange(next_, nullptr)));
    } else if (next_ != nullptr) {
      EndLaterLocked(std::exchange(next_, nullptr));
    }
    std::erase_if(older_, [this](const std::shared_ptr<Held>& held) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      if (held->episodes > 0) return false;
      if (!std::exchange(held->idle, true)) return false;
      EndLaterLocked(held);
      return true;
    });
  }
  std::shared_ptr<Held> begun = Begin();
  {
    MutexLock lock(&mutex_);
    if (!stopping_) {
      next_ = std::exchange(begun, nullptr);
      RenewLaterLocked();
    }
  }
  if (begun != nullptr) return begun->connection.stop();  // Stop has not seen it
  NotifyListener();
}

void SpreadEnvironment::EndLaterLocked(const std::shared_ptr<Held>& held) {
  ended_ += held->connection.play->counters();
  (void)ends_.Post([held] { held->connection.stop(); });  // false: Stop is under way, and `held` is none of its own
}

absl::Status SpreadEnvironment::Availability(const std::string& environment) const {
  std::shared_ptr<Held> newest;
  {
    MutexLock lock(&mutex_);
    newest = newest_;
  }
  return newest->connection.play->Availability(environment);
}

std::shared_ptr<SpreadEnvironment::Held> SpreadEnvironment::FindOrNewest(const std::string& episode) const {
  MutexLock lock(&mutex_);
  const auto found = places_.find(episode);
  return found == places_.end() ? newest_ : found->second;
}

void SpreadEnvironment::Forget(const std::string& episode) {
  MutexLock lock(&mutex_);
  const auto gone = places_.extract(episode);
  if (!gone.empty()) --gone.mapped()->episodes;
}

rollouter::RemoteEnvironment::Done SpreadEnvironment::ForgetAtEnd(const std::string& episode, Done done) {
  return [weak = weak_from_this(), episode, done = std::move(done)](absl::StatusOr<EnvironmentMessage> said) {
    const bool is_over = !said.ok() || said->done || said->rejected;
    if (auto self = weak.lock(); is_over && self != nullptr) self->Forget(episode);
    done(std::move(said));
  };
}

void SpreadEnvironment::Open(RemoteEpisode episode, Done done) {
  std::shared_ptr<Held> newest;
  {
    MutexLock lock(&mutex_);
    if (stopping_) return;
    newest = newest_;
    ++newest->episodes;
    newest->idle = false;
    places_[episode.id] = newest;
  }
  Done forget = ForgetAtEnd(episode.id, std::move(done));
  newest->connection.play->Open(std::move(episode), std::move(forget));
}

void SpreadEnvironment::Act(const std::string& episode, rollouter::RemoteAction action, Done done) {
  // An episode that is over is none of the newest connection's either, which says so.
  const std::shared_ptr<Held> held = FindOrNewest(episode);
  held->connection.play->Act(episode, std::move(action), ForgetAtEnd(episode, std::move(done)));
}

void SpreadEnvironment::Close(const std::string& episode, const std::string& reason) {
  const std::shared_ptr<Held> held = FindOrNewest(episode);
  held->connection.play->Close(episode, reason);
  Forget(episode);
}

void SpreadEnvironment::SetAvailabilityListener(std::function<void()> changed) {
  MutexLock lock(&mutex_);
  listener_ = changed == nullptr ? nullptr : std::make_shared<const std::function<void()>>(std::move(changed));
}

void SpreadEnvironment::NotifyListener() const {
  std::shared_ptr<const std::function<void()>> listener;
  {
    MutexLock lock(&mutex_);
    if (stopping_) return;
    listener = listener_;
    ++callbacks_;
  }
  if (listener != nullptr) (*listener)();
  MutexLock lock(&mutex_);
  --callbacks_;
}

rollouter::RemoteEnvironment::Counters SpreadEnvironment::counters() const {
  MutexLock lock(&mutex_);
  Counters sum = ended_;
  for (const auto& held : older_) sum += held->connection.play->counters();
  if (newest_ != nullptr) sum += newest_->connection.play->counters();
  return sum;
}

void SpreadEnvironment::Stop() {
  std::vector<std::shared_ptr<Held>> all;
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    timer_.Cancel();
    all = older_;
    for (const auto& held : {newest_, next_}) {
      if (held != nullptr) all.push_back(held);
    }
    places_.clear();
  }
  for (const auto& held : all) held->connection.stop();
  ends_.Stop();
  // The listener's owner may be freed once this returns.
  MutexLock lock(&mutex_);
  auto ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return callbacks_ == 0; };
  if (!mutex_.AwaitWithTimeout(Condition(&ended), absl::Seconds(5))) {
    SYNCOPATE_LOG(kError, "a listener of the workers' connections did not return within 5 s");
  }
}

}  // namespace syncopate::rollouterd
