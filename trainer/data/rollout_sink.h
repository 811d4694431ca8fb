#pragma once

#include <string>

#include "absl/status/status.h"
#include "base/trajectory.h"
#include "trainer/data/group_ledger.h"

namespace syncopate::trainer {

// The trainer's end of one rollouter's stream. Called with no lock held, from any thread; must not block. Once the
// stream is over, calls do nothing.
class RolloutSink {
 public:
  struct Ack {
    LeaseId lease;
    GroupLedger::Result result = GroupLedger::Result::kAccepted;  // never kPending
    absl::Status error = {};
  };
  virtual ~RolloutSink() = default;
  virtual void SendLease(const Lease& lease) = 0;
  virtual void SendAck(const Ack& ack) = 0;
  virtual void SendRevoke(const LeaseId& lease,
                          const std::string& reason) = 0;  // UPPER_SNAKE_CASE
  virtual void Close(const absl::Status& why) = 0;
};

}  // namespace syncopate::trainer
