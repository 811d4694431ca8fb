#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "absl/time/time.h"
#include "base/mutex.h"

namespace syncopate::bench {

// The events that a benchmark's process sends to its conductor: one JSON object a line on standard output, each with
// "event" and the machine's clock as "at". Thread-safe.
class EventSink {
 public:
  void Write(const std::string& event, nlohmann::json body = nlohmann::json::object());

 private:
  Mutex mutex_;  // keeps lines whole
};

// The machine's clock in seconds; comparable between processes of one machine.
double MachineSeconds();

}  // namespace syncopate::bench
