#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "base/identity.h"
#include "base/status.h"
#include "base/trajectory.h"
#include "services/auth/transport_security.h"

namespace syncopate::trainerd {

// Tells the synchronizer that the run is complete, `last` being its last version, in one call of at most `timeout`. OK:
// it is durable there and the members hear of it. Blocks; saying it again is harmless. Refused for
// good (IsRefusal), as with reason FENCED, a newer trainer has taken over; else try again.
// `security` as in ChannelOptions.
absl::Status TellCompletion(const std::string& synchronizer_address,
                            const std::shared_ptr<const auth::TransportSecurity>& security, const MemberId& member,
                            const MemberSecret& secret, const PolicyVersion& last, absl::Duration timeout);

}  // namespace syncopate::trainerd
