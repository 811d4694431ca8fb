#include "ranks/group_secret.h"

#include <gtest/gtest.h>

#include <string>

#include "base/status.h"

namespace syncopate {
namespace {

TEST(GroupSecretTest, IsDifferentEachTimeAndNothingElsePassesForIt) {
  const std::string secret = DrawGroupSecret();
  EXPECT_EQ(secret.size(), kGroupSecretBytes);
  EXPECT_NE(DrawGroupSecret(), secret);
  EXPECT_TRUE(IsGroupSecret(secret, secret));
  for (const std::string& wrong : {std::string(), secret.substr(1), secret + "x", DrawGroupSecret()}) {
    EXPECT_FALSE(IsGroupSecret(secret, wrong));
  }
  EXPECT_FALSE(IsGroupSecret("", ""));  // a group without a secret accepts no secret
}

TEST(GroupSecretTest, TravelsByTheEnvironment) {
  const std::string secret = DrawGroupSecret();
  const std::string assignment = GroupSecretAssignment(secret);
  const std::string name = std::string(kGroupSecretVariable) + "=";
  ASSERT_EQ(assignment.substr(0, name.size()), name);
  EXPECT_EQ(ParseGroupSecret(assignment.c_str() + name.size()).value(), secret);
  EXPECT_EQ(ParseGroupSecret(nullptr).value(), "");
  EXPECT_EQ(ParseGroupSecret("").value(), "");
  for (const std::string& bad :
       {std::string("secret"), std::string(63, 'a'), std::string(65, 'a'), std::string(64, 'g')}) {
    const absl::Status status = ParseGroupSecret(bad.c_str()).status();
    EXPECT_EQ(ErrorReason(status), "BAD_CONFIG");
    EXPECT_EQ(status.message().find(bad), std::string::npos);
  }
}

}  // namespace
}  // namespace syncopate
