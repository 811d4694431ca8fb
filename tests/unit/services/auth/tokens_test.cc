#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/status.h"
#include "services/auth/access.h"
#include "services/auth/tokens.h"

namespace syncopate::auth {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::string kAdminToken(32, 'a');
const std::string kViewerToken(40, 'v');

BearerTokens Two() {
  return *BearerTokens::Parse("# who may do what\n\nadmin " + kAdminToken + "\n  viewer\t" + kViewerToken + "\r\n");
}

TEST(BearerTokensTest, ATokenGivesTheRoleOfItsLine) {
  const BearerTokens tokens = Two();
  EXPECT_EQ(tokens.Match(kAdminToken), AuthRole::kAdmin);
  EXPECT_EQ(tokens.Match(kViewerToken), AuthRole::kViewer);
}

TEST(BearerTokensTest, AnythingElseGivesNone) {
  const BearerTokens tokens = Two();
  for (const std::string& shown :
       {std::string(), kAdminToken.substr(1), kAdminToken + "a", std::string(32, 'b'), kAdminToken + " "}) {
    EXPECT_EQ(tokens.Match(shown), std::nullopt) << shown;
  }
}

TEST(BearerTokensTest, TheFirstTokenOfARoleIsShownAndAllAreTaken) {
  const std::string next(32, 'n');
  const BearerTokens tokens = *BearerTokens::Parse("admin " + next + "\nadmin " + kAdminToken + "\n");
  EXPECT_EQ(tokens.Find(AuthRole::kAdmin), next);
  EXPECT_EQ(tokens.Match(next), AuthRole::kAdmin);
  EXPECT_EQ(tokens.Match(kAdminToken), AuthRole::kAdmin);
  EXPECT_EQ(tokens.Find(AuthRole::kTrainer), "");
}

TEST(BearerTokensTest, ABadFileIsRefusedByItsLineAndNeverQuoted) {
  const std::string secret = "swordfish-swordfish-swordfish-42";
  for (const char* text : {"admin short\n", "# none\n", "\n"}) {
    EXPECT_EQ(ErrorReason(BearerTokens::Parse(text).status()), "BAD_SECURITY") << text;
  }
  for (const std::string& text : {secret, "root " + secret, secret + " admin", "admin " + secret + " viewer",
                                  "admin " + secret + "!", "admin " + std::string(1100, 'x') + secret}) {
    const absl::Status status = BearerTokens::Parse("viewer " + kViewerToken + "\n" + text + "\n").status();
    EXPECT_EQ(ErrorReason(status), "BAD_SECURITY") << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("line 2"));
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("swordfish")));
  }
}

TEST(AuthenticateTest, ACertificateCountsBeforeAToken) {
  const BearerTokens tokens = Two();
  const Shown both = {true, {"spiffe://syncopate/role/viewer"}, "Bearer " + kAdminToken};
  EXPECT_EQ(Authenticate(both, "syncopate", &tokens)->role, AuthRole::kViewer);
  const Shown no_role = {true, {}, "Bearer " + kAdminToken};
  EXPECT_EQ(ErrorReason(Authenticate(no_role, "syncopate", &tokens).status()), "NO_ROLE");
}

TEST(AuthenticateTest, ATokenCountsWhereThereIsNoCertificate) {
  const BearerTokens tokens = Two();
  absl::StatusOr<Caller> caller = Authenticate({.authorization = "bearer " + kAdminToken}, "syncopate", &tokens);
  ASSERT_TRUE(caller.ok()) << caller.status();
  EXPECT_EQ(caller->role, AuthRole::kAdmin);
  EXPECT_EQ(caller->name, "a token of admin");
}

TEST(AuthenticateTest, WithoutEitherOrWithAWrongTokenNobodyGetsIn) {
  const BearerTokens tokens = Two();
  auto reason = [&](const std::string& authorization, const BearerTokens* taken) {
    const absl::Status status = Authenticate({.authorization = authorization}, "syncopate", taken).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated);
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("zzzz")));
    return ErrorReason(status);
  };
  EXPECT_EQ(reason("", &tokens), "NO_CREDENTIALS");
  EXPECT_EQ(reason("", nullptr), "NO_CREDENTIALS");
  EXPECT_EQ(reason("Bearer " + kAdminToken, nullptr), "NO_CREDENTIALS");
  EXPECT_EQ(reason("Bearer " + std::string(32, 'z'), &tokens), "BAD_TOKEN");
  EXPECT_EQ(reason("Bearer ", &tokens), "BAD_TOKEN");
  EXPECT_EQ(reason("Bearer", &tokens), "BAD_TOKEN");
  EXPECT_EQ(reason(kAdminToken, &tokens), "BAD_TOKEN");
  EXPECT_EQ(reason("Basic " + kAdminToken, &tokens), "BAD_TOKEN");
}

}  // namespace
}  // namespace syncopate::auth
