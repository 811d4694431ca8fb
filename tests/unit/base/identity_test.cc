#include "base/identity.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "base/sha256.h"
#include "tests/support/status_matchers.h"

namespace syncopate {
namespace {

using testing::HasReason;
using testing::IsOk;

TEST(MemberSecretTest, IsDifferentEachTimeAndItsIncarnationIsItsHash) {
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) {
    const MemberSecret secret = MemberSecret::Draw();
    ASSERT_EQ(secret.Reveal().size(), MemberSecret::kBytes);
    EXPECT_EQ(secret.incarnation(), Sha256Hex(secret.Reveal()));
    EXPECT_TRUE(seen.insert(secret.Reveal()).second);
  }
}

TEST(MemberSecretTest, SpeaksForItsOwnIncarnationAlone) {
  const MemberSecret secret = MemberSecret::Draw();
  const MemberId member{"trainer", "trainer-0", 0, 1, secret.incarnation()};
  EXPECT_THAT(CheckSpeaksFor(member, secret.Reveal()), IsOk());
  for (const std::string& wrong : {std::string(), secret.Reveal().substr(1), secret.Reveal() + "x",
                                   secret.incarnation(), MemberSecret::Draw().Reveal(), std::string(1 << 20, 'x')}) {
    EXPECT_THAT(CheckSpeaksFor(member, wrong), HasReason("WRONG_SECRET"));
  }
  EXPECT_EQ(CheckSpeaksFor(member, "").code(), absl::StatusCode::kPermissionDenied);
}

TEST(MemberSecretTest, TheHashOfNothingIsNobodysIncarnation) {
  EXPECT_THAT(CheckSpeaksFor({"trainer", "trainer-0", 0, 1, Sha256Hex("")}, ""), HasReason("WRONG_SECRET"));
}

TEST(MemberSecretTest, ARefusalDoesNotRepeatWhatWasShown) {
  const absl::Status refused = CheckSpeaksFor({"rollouter", "rollouter-0", 0, 1, "i"}, "the wrong secret");
  EXPECT_EQ(refused.ToString().find("the wrong secret"), std::string::npos);
}

MemberId Named(const std::string& replica_id, const std::string& incarnation = "i") {
  return {"rollouter", replica_id, 0, 1, incarnation};
}

TEST(CheckMemberTest, TakesWhatDaemonsAndPodsAreCalled) {
  for (const char* name : {"rollouter-0", "trainer-a", "trainer-", "syncopate-rollouter-7f9c6-x2x4k", "a", "A.b_c-9"}) {
    EXPECT_THAT(CheckMember(Named(name)), IsOk()) << name;
  }
  EXPECT_THAT(CheckMember(Named(std::string(128, 'x'))), IsOk());
  EXPECT_THAT(CheckMember({"trainer", "trainer", 4095, 4096, MemberSecret::Draw().incarnation()}), IsOk());
}

TEST(CheckMemberTest, NoRollouterIsCalledAsADaemonOfAnotherRole) {
  for (const char* name : {"trainer-0", "trainer-1", "trainer-63", "synchronizer-0"}) {
    EXPECT_THAT(CheckMember(Named(name)), HasReason("BAD_MEMBER")) << name;
  }
  EXPECT_THAT(CheckMember({"trainer", "trainer-0", 0, 1, "i"}), IsOk());
}

TEST(CheckMemberTest, RefusesNamesThatWouldSpoilALogATableOrAPath) {
  for (const std::string& name : {std::string(), std::string("a\nb"), std::string("../x"), std::string(".."),
                                  std::string("a/b"), std::string("a b"), std::string("a\0b", 3), std::string("\xff"),
                                  std::string(129, 'x'), std::string(60000, 'x')}) {
    EXPECT_THAT(CheckMember(Named(name)), HasReason("BAD_MEMBER")) << name;
    EXPECT_THAT(CheckMember(Named("rollouter-0", name)), HasReason("BAD_MEMBER")) << name;
    const std::string message(CheckMember(Named(name)).message());
    EXPECT_LT(message.size(), 400u) << "the error repeats little of a stranger's text";
    EXPECT_EQ(message.find('\n'), std::string::npos);
  }
}

TEST(CheckMemberTest, RefusesRolesAndRanksThatCannotBe) {
  EXPECT_THAT(CheckMember({"synchronizer", "s", 0, 1, "i"}), HasReason("BAD_MEMBER"));
  EXPECT_THAT(CheckMember({"trainer", "t", -1, 1, "i"}), HasReason("BAD_MEMBER"));
  EXPECT_THAT(CheckMember({"trainer", "t", 1, 1, "i"}), HasReason("BAD_MEMBER"));
  EXPECT_THAT(CheckMember({"trainer", "t", 0, 0, "i"}), HasReason("BAD_MEMBER"));
  EXPECT_THAT(CheckMember({"trainer", "t", 0, 4097, "i"}), HasReason("BAD_MEMBER"));
}

}  // namespace
}  // namespace syncopate
