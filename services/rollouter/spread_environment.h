#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/worker.h"
#include "rollouter/environment/remote_environment.h"
#include "services/rpc/timer.h"

namespace syncopate::rollouterd {

// Spreads play over the workers behind one name: connects anew from time to time, as the name may lead to another worker
// then, such as one that was added. Episodes open at the newest connection that is there, and stay with it until they are
// over; a connection that is not the newest ends when it has none left. Thread-safe; only Stop blocks.
class SpreadEnvironment final : public rollouter::RemoteEnvironment,
                                public std::enable_shared_from_this<SpreadEnvironment> {
 public:
  struct Connection {
    std::shared_ptr<rollouter::RemoteEnvironment> play;
    std::function<void()> stop;  // may block; afterwards `play` calls nobody back
  };
  struct Options {
    std::function<Connection()> connect;             // begins a connection; does not block
    absl::Duration renew_every = absl::Seconds(30);  // InfiniteDuration: when Renew is called
  };

  static std::shared_ptr<SpreadEnvironment> Start(Options options);
  ~SpreadEnvironment() override;

  absl::Status Availability(const std::string& environment) const override;
  void Open(rollouter::RemoteEpisode episode, Done done) override;
  void Act(const std::string& episode, rollouter::RemoteAction action, Done done) override;
  void Close(const std::string& episode, const std::string& reason) override;
  void SetAvailabilityListener(std::function<void()> changed) override;
  Counters counters() const override;  // of all connections that ever were

  // What is done every `renew_every`: the connection that was begun by the last call takes over if it is there, one
  // without episodes ends, another is begun. Does not block.
  void Renew();
  // Ends all connections; afterwards no callback is called. Idempotent. Must not be called from a callback.
  void Stop();

 private:
  struct Held {
    Connection connection;
    int64_t episodes = 0;  // open ones
    bool idle = false;     // has had none since an earlier Renew: what it was asked to cancel has ended, too
  };

  explicit SpreadEnvironment(Options options) : options_(std::move(options)) {}
  std::shared_ptr<Held> Begin();
  std::shared_ptr<Held> FindOrNewest(const std::string& episode) const;
  Done ForgetAtEnd(const std::string& episode, Done done);
  void Forget(const std::string& episode);
  void EndLaterLocked(const std::shared_ptr<Held>& held) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RenewLaterLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NotifyListener() const;

  const Options options_;
  mutable Mutex mutex_;
  std::shared_ptr<Held> newest_ ABSL_GUARDED_BY(mutex_);  // that is used for what opens
  std::shared_ptr<Held> next_ ABSL_GUARDED_BY(mutex_);    // takes over once it is there; null: there is none
  std::vector<std::shared_ptr<Held>> older_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<Held>> places_ ABSL_GUARDED_BY(mutex_);  // of open episodes
  Counters ended_ ABSL_GUARDED_BY(mutex_);                                       // of connections that have ended
  std::shared_ptr<const std::function<void()>> listener_ ABSL_GUARDED_BY(mutex_);
  rpc::Timer timer_ ABSL_GUARDED_BY(mutex_);
  mutable int callbacks_ ABSL_GUARDED_BY(mutex_) = 0;  // of the listener that run
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  Worker ends_;  // calls `stop`, which may block
};

}  // namespace syncopate::rollouterd
