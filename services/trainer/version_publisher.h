#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "base/identity.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/trajectory.h"
#include "services/auth/transport_security.h"
#include "trainer/loop/run_observer.h"

namespace syncopate::trainerd {

// Tells the synchronizer which versions are staged, from a thread of its own, so that the step thread never waits for
// the network. Only the newest version matters: while the synchronizer is away a newer publication replaces the one
// that waits. Thread-safe.
class VersionPublisher {
 public:
  using Publication = trainer::Publication;
  struct Options {
    std::string synchronizer_address;
    std::shared_ptr<const auth::TransportSecurity> security = nullptr;  // null: plaintext
    MemberId member;
    MemberSecret secret;  // of its incarnation
    absl::Duration call_timeout = absl::Seconds(5);
    // Called at most once, from the publisher's thread, when the synchronizer has refused a version for good
    // (INVALID_ARGUMENT or FAILED_PRECONDITION, such as reason FENCED: a newer trainer has taken over). Nothing more is
    // published: this trainer must exit.
    std::function<void(const absl::Status&)> on_refused;
  };

  // INVALID_ARGUMENT for an address that cannot be.
  static absl::StatusOr<std::unique_ptr<VersionPublisher>> Start(Options options);
  ~VersionPublisher();  // Stop()

  // Queues it; does not block. Repeated with backoff until it is recorded, overtaken or refused for good.
  void Publish(Publication publication);

  // Ends the thread within one call's timeout. Idempotent.
  void Stop();

 private:
  class Caller;
  VersionPublisher(Options options, std::unique_ptr<Caller> caller);
  void Run();

  const Options options_;
  const std::unique_ptr<Caller> caller_;
  Mutex mutex_;
  std::optional<Publication> pending_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace syncopate::trainerd
