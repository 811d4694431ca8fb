#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/trajectory.h"
#include "services/auth/transport_security.h"

namespace syncopate::services {

// Tells the synchronizer which versions are staged, from a thread of its own, so that the step thread never waits for
// the network. Only the newest version matters: while the synchronizer is away a newer publication replaces the one
// that waits. Thread-safe.
class VersionPublisher {
 public:
  struct Publication {
    PolicyVersion version;
    std::vector<uint64_t> bucket_digests = {};
    uint64_t manifest_fingerprint = 0;
    double stage_seconds = 0;
  };
  struct Options {
    std::string synchronizer_address;
    std::shared_ptr<const TransportSecurity> security = nullptr;  // null: plaintext
    MemberId member;
    absl::Duration call_timeout = absl::Seconds(5);
    // Called at most once, from the publisher's thread, when the synchronizer says that a newer trainer has taken
    // over (reason FENCED): this one must exit, and nothing more is published.
    std::function<void(const absl::Status&)> on_fenced;
  };

  // INVALID_ARGUMENT for an address that cannot be.
  static absl::StatusOr<std::unique_ptr<VersionPublisher>> Start(Options options);
  ~VersionPublisher();  // Stop()

  // Queues it; does not block. Repeated with backoff while the synchronizer cannot be reached or does not know this
  // member yet; any other refusal is logged and given up.
  void Publish(Publication publication);

  // Ends the thread within one call's timeout. Idempotent.
  void Stop();

 private:
  class Caller;
  VersionPublisher(Options options, std::unique_ptr<Caller> caller);
  void Run();
  // What to do after one call: OK, try again, or give up.
  bool ShouldRetry(const Publication& publication, const absl::Status& status);

  const Options options_;
  const std::unique_ptr<Caller> caller_;
  Mutex mutex_;
  std::optional<Publication> pending_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace syncopate::services
