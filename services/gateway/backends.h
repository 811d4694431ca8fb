#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/mutex.h"

namespace syncopate::gateway {

// The endpoints that a gateway passes requests to, and the choice of one for each request: the least loaded, or the one
// that the caller's last request went to, where a conversation's prefix is kept, unless that one is `kSlack` requests
// busier. An endpoint that could not be reached is left out for `rest`, unless there is no other. Thread-safe.
class Backends {
 public:
  // A kept prefix saves computing a prompt once more; a queue of 8 more requests costs longer than that.
  static constexpr int64_t kSlack = 8;
  static constexpr size_t kMaxCallers = 16384;  // whose last endpoint is remembered; the oldest is forgotten

  // One request at an endpoint; it counts until the last copy of `place` is destroyed.
  struct Choice {
    std::string address;
    std::shared_ptr<void> place;
  };

  explicit Backends(absl::Duration rest = absl::Seconds(1)) : rest_(rest) {}

  // Replaces the endpoints; requests under way at others are not affected.
  void Set(const std::set<std::string>& addresses);
  // None if all endpoints are in `tried`. `caller` names who asks; "": nobody in particular.
  std::optional<Choice> Choose(const std::string& caller, const std::set<std::string>& tried, absl::Time now);
  // `address` could not be reached.
  void Rest(const std::string& address, absl::Time now);
  std::vector<std::string> addresses() const;

 private:
  struct Load;
  struct Backend {
    std::shared_ptr<Load> load;
    absl::Time rests_until = absl::InfinitePast();
  };

  void RememberLocked(const std::string& caller, const std::string& address) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const absl::Duration rest_;
  mutable Mutex mutex_;
  std::map<std::string, Backend> backends_ ABSL_GUARDED_BY(mutex_);  // by address
  std::map<std::string, std::string> last_ ABSL_GUARDED_BY(mutex_);  // caller -> address
  std::deque<std::string> callers_ ABSL_GUARDED_BY(mutex_);          // of last_, the oldest first
  uint64_t choices_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace syncopate::gateway
