#pragma once

#include <deque>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "base/mutex.h"

namespace syncopate::bench {

// A message of a benchmark's process, or an observation about it.
struct BenchEvent {
  std::string from;     // "source-0", "receiver-1.0" (replica.rank), "synchronizer", "syncs"
  std::string kind;     // "answer", "ceiling", "sync", "ended", ...
  nlohmann::json body;  // an object
  absl::Time when;      // of Clock::Real(), which all processes of a machine share
};

// The events of all processes of a benchmark, in the order of their arrival. Thread-safe.
class EventQueue {
 public:
  void Put(BenchEvent event);
  // The next event; nullopt if none comes until `deadline` (of Clock::Real()).
  std::optional<BenchEvent> Next(absl::Time deadline);

 private:
  Mutex mutex_;
  std::deque<BenchEvent> events_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncopate::bench
