#include "services/rpc/write_queue.h"

#include "base/status.h"

namespace syncopate::rpc {

absl::Status StreamOptions::Validate() const {
  if (max_queued_messages > 0 && max_queued_bytes > 0 && stalled_after > absl::ZeroDuration() &&
      silent_after > absl::ZeroDuration()) {
    return absl::OkStatus();
  }
  return Error(absl::StatusCode::kInvalidArgument, "BAD_OPTIONS", "StreamOptions: every bound must be positive");
}

}  // namespace syncopate::rpc
