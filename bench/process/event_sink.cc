#include "bench/process/event_sink.h"

#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/clock.h"

namespace syncopate::bench {

double MachineSeconds() { return absl::ToDoubleSeconds(Clock::Real()->Now() - absl::UnixEpoch()); }

void EventSink::Write(const std::string& event, nlohmann::json body) {
  body["event"] = event;
  body["at"] = MachineSeconds();
  const std::string line = body.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace) + "\n";
  MutexLock lock(&mutex_);
  size_t written = 0;
  while (written < line.size()) {
    const ssize_t count = ::write(STDOUT_FILENO, line.data() + written, line.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;  // the conductor is gone, and this process will be killed
    written += static_cast<size_t>(count);
  }
}

}  // namespace syncopate::bench
