#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/member/member_client.h"

namespace syncopate::bench {

// Many rollouters in this process, as the synchronizer sees them: each joins with the product's own client over a
// connection of its own, sends heartbeats, and joins again after the synchronizer was away. They have no weights, and
// refuse every sync. Used by one thread.
class MemberFleet {
 public:
  struct Options {
    std::string synchronizer;  // host:port
    int32_t members = 1000;
    std::shared_ptr<const auth::TransportSecurity> security = nullptr;  // null: plaintext
  };

  // Starts all of them; they join in the background. Errors of MemberClient::Start.
  static absl::StatusOr<std::unique_ptr<MemberFleet>> Start(const Options& options);
  ~MemberFleet();  // returns when all have left

  // OK when every member has been welcomed once. DEADLINE_EXCEEDED reason NOT_JOINED, or the error with which one was
  // refused.
  absl::Status AwaitWelcomes(absl::Time deadline);

 private:
  class Refusal;
  MemberFleet();

  std::unique_ptr<Refusal> refusal_;  // the participant of all members
  std::vector<std::unique_ptr<member::MemberClient>> members_;
};

}  // namespace syncopate::bench
