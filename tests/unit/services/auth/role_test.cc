#include <gtest/gtest.h>

#include "base/status.h"
#include "services/auth/role.h"

namespace syncopate::auth {
namespace {

TEST(AuthRoleTest, EachNameStandsForItsRole) {
  for (AuthRole role : AllAuthRoles()) EXPECT_EQ(*ParseAuthRole(AuthRoleName(role)), role);
  EXPECT_EQ(ErrorReason(ParseAuthRole("root").status()), "BAD_ROLE");
  EXPECT_EQ(ErrorReason(ParseAuthRole("").status()), "BAD_ROLE");
}

TEST(AuthRoleTest, ASpiffeIdGivesTheRoleThatItNames) {
  EXPECT_EQ(*RoleOfSpiffeId("spiffe://syncopate/role/trainer", "syncopate"), AuthRole::kTrainer);
  EXPECT_EQ(*RoleOfSpiffeId("spiffe://rl.example.org/role/viewer", "rl.example.org"), AuthRole::kViewer);
}

TEST(AuthRoleTest, AnythingButAWholeSpiffeIdOfTheTrustDomainGivesNone) {
  for (const char* uri :
       {"spiffe://other/role/admin", "spiffe://syncopate/role/admin/", "spiffe://syncopate/role/", "spiffe://syncopate",
        "https://syncopate/role/admin", "spiffe://syncopate/role/Admin", "spiffe://syncopate.evil/role/admin",
        " spiffe://syncopate/role/admin", "spiffe://syncopate/role/admin?x", "spiffe://SYNCOPATE/role/admin", ""}) {
    EXPECT_EQ(ErrorReason(RoleOfSpiffeId(uri, "syncopate").status()), "BAD_SPIFFE_ID") << uri;
  }
  const std::string cut("spiffe://syncopate/role/admin\0.org", 34);
  EXPECT_FALSE(RoleOfSpiffeId(cut, "syncopate").ok());
}

TEST(AuthRoleTest, ACertificateOfTwoRolesOrOfNoneIsRefused) {
  const std::string admin = "spiffe://syncopate/role/admin";
  EXPECT_EQ(*RoleOfUris({admin}, "syncopate"), AuthRole::kAdmin);
  EXPECT_EQ(ErrorReason(RoleOfUris({}, "syncopate").status()), "NO_ROLE");
  EXPECT_EQ(ErrorReason(RoleOfUris({admin, "spiffe://syncopate/role/viewer"}, "syncopate").status()), "NO_ROLE");
  EXPECT_EQ(ErrorReason(RoleOfUris({admin, admin}, "syncopate").status()), "NO_ROLE");
  EXPECT_EQ(ErrorReason(RoleOfUris({"spiffe://other/role/admin"}, "syncopate").status()), "NO_ROLE");
}

TEST(AuthRoleTest, ASetOfRolesHoldsWhatItWasGivenAndNamesIt) {
  constexpr AuthRoles some = {AuthRole::kAdmin, AuthRole::kTrainer};
  EXPECT_TRUE(some.Contains(AuthRole::kAdmin));
  EXPECT_FALSE(some.Contains(AuthRole::kViewer));
  EXPECT_EQ(some.ToString(), "trainer or admin");
  EXPECT_EQ(AuthRoles().ToString(), "nobody");
}

}  // namespace
}  // namespace syncopate::auth
