#pragma once

#include <memory>

#include "services/auth/transport_security.h"
#include "services/trainer/synchronizer_client.h"
#include "trainer/record/run_summary.h"

namespace syncopate::trainerd {

// Asks the synchronizer for its count of syncs and its members, then all live rollouters at once for their status. A
// peer that does not answer soon is left out and logged: a summary must not wait for a dead peer. Blocks for at most
// five seconds; must not be called from a gRPC callback. `security` as in ChannelOptions.
trainer::RunWitnesses AskWitnesses(SynchronizerClient* synchronizer,
                                   const std::shared_ptr<const auth::TransportSecurity>& security);

}  // namespace syncopate::trainerd
