// A member that the synchronizer refuses, or that does not trust the synchronizer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "services/rpc/server.h"
#include "tests/component/member/member_fixture.h"
#include "tests/support/test_authority.h"

namespace syncopate::auth {
namespace {

using ::testing::HasSubstr;

// The shortest time in which `tries` attempts in a row can be made: the backoff doubles from 50 ms to 1 s, and is at
// most halved at random.
absl::Duration GetSoonest(int tries) {
  absl::Duration sum;
  for (int i = 0; i + 1 < tries; ++i) sum += std::min(absl::Seconds(1), absl::Milliseconds(50) * (1 << i)) / 2;
  return sum;
}

TEST(RefusedMemberTest, SaysWhyAndTriesAgainWithABackoffThatMakesNoStorm) {
  constexpr int kTries = 7;
  const testing::TestAuthority ours, theirs;
  auto server = rpc::Server::Start({.security = theirs.SecurityFor("synchronizer")}, {}).value();
  auto security = ours.SecurityFor("rollouter");
  member::MemberClient::Options options = member::TestMember::MakeOptions(server->address());
  options.security = security;
  const absl::Time begin = Clock::Real()->Now();
  member::TestMember member(options);
  absl::Status status;
  while (security->refusals() < kTries && Clock::Real()->Now() - begin < 3 * kTestDeadline) {
    status = member->WaitForWelcome(absl::Milliseconds(50)).status();
  }
  EXPECT_GE(Clock::Real()->Now() - begin, GetSoonest(static_cast<int>(security->refusals())));
  EXPECT_GE(security->refusals(), kTries);
  EXPECT_EQ(ErrorReason(status), "NOT_JOINED");
  EXPECT_THAT(std::string(status.message()), HasSubstr("UNKNOWN_AUTHORITY"));
  EXPECT_EQ(member.refusals().size(), 0u);  // the member goes on trying, since a certificate may be replaced
}

TEST(RefusedMemberTest, OfAnotherRoleIsToldSoAndStaysOutside) {
  const testing::TestAuthority authority;
  auto server = rpc::Server::Start({.security = authority.SecurityFor("synchronizer")}, {}).value();
  member::MemberClient::Options options = member::TestMember::MakeOptions(server->address());
  options.security = authority.SecurityFor("viewer");
  member::TestMember member(options);
  absl::Status status;
  const absl::Time deadline = Clock::Real()->Now() + 3 * kTestDeadline;
  do {
    status = member->WaitForWelcome(absl::Milliseconds(50)).status();
  } while (status.message().find("may not call") == std::string::npos && Clock::Real()->Now() < deadline);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the role viewer may not call"));
}

}  // namespace
}  // namespace syncopate::auth
