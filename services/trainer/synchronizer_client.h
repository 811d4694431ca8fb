#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/identity.h"
#include "services/auth/transport_security.h"
#include "synchronizer/loop/sync_tally.h"
#include "syncopate/v1/synchronizer.grpc.pb.h"
#include "trainer/loop/run_observer.h"
#include "trainer/loop/sync_patience.h"

namespace syncopate::trainerd {

// What a trainer tells and asks the synchronizer. Each call blocks, for two seconds at most (Publish: five), so none is
// made from a gRPC callback or the step thread. Refused for good (IsRefusal), as with reason FENCED: a newer trainer
// has taken over; after every other error it may be tried again. Thread-safe.
class SynchronizerClient {
 public:
  struct Options {
    std::string address;
    std::shared_ptr<const auth::TransportSecurity> security = nullptr;  // null: plaintext
    MemberId member = {};
    MemberSecret secret;  // of its incarnation
  };
  // INVALID_ARGUMENT for an address that cannot be.
  static absl::StatusOr<std::unique_ptr<SynchronizerClient>> Create(Options options);

  // Which version is staged.
  absl::Status Publish(const trainer::Publication& publication);
  // The run is complete, `last` being its last version. OK: that is durable there and the members hear of it. Saying it
  // again is harmless.
  absl::Status CompleteRun(const PolicyVersion& last);

  // How weight syncs go, since the synchronizer started.
  absl::StatusOr<trainer::SyncPatience::Tally> CountSyncs();
  // Why the last one that failed did; "" if that cannot be had.
  std::string LastSyncFailure();
  // All of the run, over all lives of the synchronizer.
  absl::StatusOr<synchronizer::SyncTally> TallySyncs();
  // Rollouters that are there.
  absl::StatusOr<std::vector<v1::MemberStatus>> ListRollouters();

 private:
  SynchronizerClient(Options options, const std::shared_ptr<grpc::Channel>& channel);
  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(grpc::Status (v1::SynchronizerService::Stub::*method)(grpc::ClientContext*,
                                                                                      const Request&, Response*),
                                const Request& request, absl::Duration timeout) const;

  const Options options_;
  const std::unique_ptr<v1::SynchronizerService::Stub> stub_;
};

}  // namespace syncopate::trainerd
