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

// A trainer's calls to the synchronizer. Each call blocks, for two seconds at most (Publish: five), so none may be made
// from a gRPC callback or the step thread. An error is final if IsRefusal, e.g. reason FENCED: a newer trainer has
// taken over. After any other error the call may be repeated. Thread-safe.
class SynchronizerClient {
 public:
  struct Options {
    std::string address;
    std::shared_ptr<const auth::TransportSecurity> security = nullptr;  // null: plaintext
    MemberId member = {};
    MemberSecret secret;  // of the member's incarnation
  };
  // INVALID_ARGUMENT for a malformed address.
  static absl::StatusOr<std::unique_ptr<SynchronizerClient>> Create(Options options);

  // Tells the synchronizer which version is staged.
  absl::Status Publish(const trainer::Publication& publication);
  // Tells the synchronizer that the run is complete and `last` is its last version. OK: the synchronizer has stored
  // that and tells the members. Repeating it is harmless.
  absl::Status CompleteRun(const PolicyVersion& last);

  // Counts of weight syncs since the synchronizer started.
  absl::StatusOr<trainer::SyncPatience::Tally> CountSyncs();
  // Why the most recent failed sync failed; "" if that is not available.
  std::string LastSyncFailure();
  // All syncs of the run, over all incarnations of the synchronizer.
  absl::StatusOr<synchronizer::SyncTally> TallySyncs();
  // The live rollouters, one entry a replica.
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
