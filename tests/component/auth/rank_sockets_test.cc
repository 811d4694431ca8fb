#include "services/auth/rank_sockets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "ranks/socket_meeting.h"
#include "tests/support/communicator_conformance.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_authority.h"

namespace syncopate {
namespace {

using ::syncopate::testing::HasReason;
using ::syncopate::testing::TestAuthority;

constexpr absl::Duration kPatience = absl::Seconds(20), kSoon = absl::Milliseconds(500);

using Met = absl::StatusOr<std::unique_ptr<Communicator>>;

// Ranks over loopback; rank r uses securities[r]. Rank 0 waits for `meet`.
std::vector<Met> Meet(const std::vector<SocketSecurity>& securities, absl::Duration meet = kPatience,
                      absl::Duration deadline = kPatience) {
  std::vector<SocketMeeting> meetings;
  std::vector<HostPort> addresses;
  for (size_t i = 0; i < securities.size(); ++i) {
    meetings.push_back(SocketMeeting::Open({"127.0.0.1", 0}, "trainer.ranks_listen").value());
    addresses.push_back(meetings.back().address());
  }
  const RankSecret secret = DrawRankSecret();
  std::vector<std::future<Met>> meeting;
  for (size_t i = 0; i < securities.size(); ++i) {
    meeting.push_back(std::async(std::launch::async, [&, i] {
      return meetings[i].Meet({.rank = static_cast<int32_t>(i),
                               .world = static_cast<int32_t>(securities.size()),
                               .secret = secret,
                               .meet = meet,
                               .deadline = deadline,
                               .security = securities[i]},
                              addresses);
    }));
  }
  std::vector<Met> met;
  for (std::future<Met>& one : meeting) met.push_back(one.get());
  return met;
}

std::shared_ptr<const auth::TransportSecurity> TrainerSecurity() {
  static const auto* const authority = new TestAuthority;
  static const auto* const security =
      new std::shared_ptr<const auth::TransportSecurity>(authority->SecurityFor("trainer"));
  return *security;
}

trainer::Ranks MakeTlsRanks(int32_t world, absl::Duration deadline) {
  const std::vector<SocketSecurity> securities(static_cast<size_t>(world),
                                               RankSocketSecurity(TrainerSecurity(), auth::AuthRole::kTrainer));
  trainer::Ranks ranks;
  for (Met& one : Meet(securities, kPatience, deadline)) ranks.push_back(std::move(one).value());
  return ranks;
}

// A refusal is noticed at the end that judges the certificate. The end that dials completes its part of a TLS 1.3
// handshake first, and then finds its connection closed.
TEST(RankSocketsTest, ARankWithTheCertificateOfAnotherRoleIsRefused) {
  TestAuthority authority;
  const auto trainer = authority.SecurityFor("trainer"), rollouter = authority.SecurityFor("rollouter");
  std::vector<Met> met = Meet(
      {RankSocketSecurity(trainer, auth::AuthRole::kTrainer), RankSocketSecurity(rollouter, auth::AuthRole::kTrainer)},
      kSoon);
  EXPECT_THAT(met[0].status(), HasReason("RANK_LOST"));
  EXPECT_FALSE(met[1].ok());
  EXPECT_EQ(trainer->refusals(), 1);
  // The reverse case: a rank does not greet a process that lacks the role.
  met = Meet(
      {RankSocketSecurity(rollouter, auth::AuthRole::kTrainer), RankSocketSecurity(trainer, auth::AuthRole::kTrainer)},
      kSoon);
  EXPECT_THAT(met[0].status(), HasReason("RANK_LOST"));
  EXPECT_THAT(met[1].status(), HasReason("WRONG_ROLE"));
}

TEST(RankSocketsTest, ARankOfAnotherAuthorityIsRefused) {
  TestAuthority authority, other;
  const auto ours = authority.SecurityFor("trainer"), theirs = other.SecurityFor("trainer");
  const std::vector<Met> met =
      Meet({RankSocketSecurity(ours, auth::AuthRole::kTrainer), RankSocketSecurity(theirs, auth::AuthRole::kTrainer)},
           kSoon);
  EXPECT_THAT(met[0].status(), HasReason("RANK_LOST"));
  EXPECT_THAT(met[1].status(), HasReason("UNKNOWN_AUTHORITY"));
}

TEST(RankSocketsTest, ARankInPlaintextIsRefusedByOneWithTls) {
  TestAuthority authority;
  const auto security = authority.SecurityFor("trainer");
  for (const bool rank0_has_tls : {true, false}) {
    std::vector<SocketSecurity> securities(2);
    securities[rank0_has_tls ? 0 : 1] = RankSocketSecurity(security, auth::AuthRole::kTrainer);
    const std::vector<Met> met = Meet(securities, kSoon);
    EXPECT_FALSE(met[0].ok());
    EXPECT_FALSE(met[1].ok());
  }
}

TEST(RankSocketsTest, WhatIsNotEncryptedOrHasNoCertificateHasNoSuchSockets) {
  EXPECT_EQ(RankSocketSecurity(nullptr, auth::AuthRole::kTrainer), nullptr);
  TestAuthority authority;
  auth::TransportSecurity::Options options{.role = "trainer"};
  options.token_file = authority.WriteSecret("tokens", "trainer " + std::string(64, 'a') + "\n");
  const auto tokens = auth::TransportSecurity::Load(options);
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ(RankSocketSecurity(*tokens, auth::AuthRole::kTrainer), nullptr);
}

}  // namespace

namespace trainer {
INSTANTIATE_TEST_SUITE_P(Ranks, CommunicatorTest, ::testing::Values(CommunicatorCase{"tls", &MakeTlsRanks}),
                         [](const auto& info) { return std::string(info.param.name); });
}  // namespace trainer

}  // namespace syncopate
