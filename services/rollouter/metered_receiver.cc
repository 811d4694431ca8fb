#include "services/rollouter/metered_receiver.h"

#include <algorithm>
#include <utility>

namespace syncopate::rollouterd {

void MeteredReceiver::Transfer(const synchronizer::Transfer& command, Done done) {
  // Not `this`: a transfer may end when this is no more.
  receiver_.Transfer(command, [metrics = metrics_, clock = clock_, begun = clock_->Now(),
                               done = std::move(done)](synchronizer::SyncReport report) {
    const double elapsed = absl::ToDoubleSeconds(clock->Now() - begun);
    const double moving = elapsed - report.connect_seconds - report.verify_seconds;
    if (report.status.ok() && report.bytes > 0) metrics.Count(report.bytes, std::max(0.0, moving));
    done(std::move(report));
  });
}

}  // namespace syncopate::rollouterd
