#include "services/member/member_client.h"

#include <utility>

#include "base/acceptor.h"
#include "base/status.h"
#include "services/member/join_loop.h"

namespace syncopate::member {

absl::Status MemberClient::Options::Validate() const {
  SYNCOPATE_RETURN_IF_ERROR(CheckTarget(synchronizer_address));
  auto bad = [](const std::string& message) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_OPTIONS", "MemberClient: " + message);
  };
  if (hello.manifest == nullptr && hello.member.role != "rollouter") return bad("hello.manifest is missing");
  if (hello.member.role.empty() || hello.member.incarnation.empty()) return bad("hello.member is incomplete");
  if (!CheckSpeaksFor(hello.member, secret.Reveal()).ok()) return bad("the secret is not that of hello.member");
  if (min_backoff <= absl::ZeroDuration() || max_backoff < min_backoff)
    return bad("the backoff must rise from above 0");
  if (welcome_timeout <= absl::ZeroDuration()) return bad("welcome_timeout must be positive");
  if (lost_after <= absl::ZeroDuration()) return bad("lost_after must be positive");
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<MemberClient>> MemberClient::Start(Options options, SyncParticipant* participant) {
  SYNCOPATE_RETURN_IF_ERROR(options.Validate());
  auto loop = std::make_shared<JoinLoop>(std::move(options), participant);
  loop->Connect();
  return std::unique_ptr<MemberClient>(new MemberClient(std::move(loop)));
}

MemberClient::MemberClient(std::shared_ptr<JoinLoop> loop) : loop_(std::move(loop)) {}

MemberClient::~MemberClient() { Stop(absl::ZeroDuration()); }

absl::StatusOr<synchronizer::Welcome> MemberClient::WaitForWelcome(absl::Duration deadline) {
  return loop_->WaitForWelcome(deadline);
}

void MemberClient::SetDirectoryListener(std::function<void(const synchronizer::Directory&)> listener) {
  loop_->SetDirectoryListener(std::move(listener));
}

std::function<void()> MemberClient::Announcer() {
  // Weak: the announcer may outlive this client.
  return [weak = std::weak_ptr<JoinLoop>(loop_)] {
    if (const std::shared_ptr<JoinLoop> loop = weak.lock()) loop->SendHeartbeat();
  };
}

void MemberClient::Leave(const std::string& reason) { loop_->Leave(reason); }

void MemberClient::Stop(absl::Duration deadline) { loop_->Stop(deadline); }

}  // namespace syncopate::member
