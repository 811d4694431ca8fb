#pragma once

#include <memory>
#include <string>
#include <utility>

#include "services/member/member_client.h"
#include "tests/component/member/fake_synchronizer.h"
#include "tests/component/member/scripted_participant.h"
#include "tests/support/synchronizer_fixtures.h"
#include "tests/support/test_identity.h"

namespace syncopate::member {

inline synchronizer::Prepare MakePrepare(int64_t attempt) {
  synchronizer::Prepare prepare;
  prepare.attempt = attempt;
  prepare.deadline = absl::Seconds(20);
  return prepare;
}

// A member with a scripted participant, and the events that it reports to its daemon.
class TestMember {
 public:
  // An `id` without an incarnation gets the incarnation of "life-1".
  static MemberClient::Options MakeOptions(const std::string& address, MemberId id = synchronizer::RollouterId(0, "")) {
    MemberClient::Options options;
    options.synchronizer_address = address;
    options.secret = testing::GetSecret("life-1");
    id.incarnation = options.secret.incarnation();
    options.hello = synchronizer::HelloFor(std::move(id), std::make_shared<const Manifest>(synchronizer::SmallModel()));
    return options;
  }

  explicit TestMember(const std::string& address) : TestMember(MakeOptions(address)) {}
  explicit TestMember(MemberClient::Options options) {
    options.on_refused = [this](const absl::Status& status) { refusals_.Put(status); };
    client_ = MemberClient::Start(std::move(options), &participant_).value();
  }
  ~TestMember() { client_->Stop(kTestDeadline); }

  MemberClient* operator->() { return client_.get(); }
  bool Joins() { return client_->WaitForWelcome(kTestDeadline).ok(); }
  ScriptedParticipant& participant() { return participant_; }
  Mailbox<absl::Status>& refusals() { return refusals_; }

 private:
  ScriptedParticipant participant_;
  Mailbox<absl::Status> refusals_;
  std::unique_ptr<MemberClient> client_;
};

}  // namespace syncopate::member
