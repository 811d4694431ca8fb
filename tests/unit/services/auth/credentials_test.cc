#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/status.h"
#include "services/auth/transport_security.h"
#include "tests/support/test_authority.h"

namespace syncopate::auth {
namespace {

using ::testing::HasSubstr;

// A daemon reports errors of its own files before it connects to any peer.
class CredentialsTest : public ::testing::Test {
 protected:
  absl::Status LoadTrainer(const testing::TestAuthority::Files& files) {
    return TransportSecurity::Load(
               {.role = "trainer", .tls_cert = files.certificate, .tls_key = files.key, .tls_ca = authority_.ca()})
        .status();
  }
  void ExpectRefused(const testing::TestAuthority::Files& files, const std::string& reason, const std::string& words) {
    const absl::Status status = LoadTrainer(files);
    EXPECT_EQ(ErrorReason(status), reason) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(words));
  }

  testing::TestAuthority authority_;
};

TEST_F(CredentialsTest, ADaemonsOwnRightCertificateIsTaken) {
  EXPECT_TRUE(LoadTrainer(authority_.IssueFor("trainer")).ok());
}

TEST_F(CredentialsTest, ADaemonsOwnWrongCertificateIsRefusedWithTheFileAndTheFault) {
  const std::string trainer = testing::TestAuthority::Spiffe("trainer");
  ExpectRefused({authority_.folder() + "/missing.crt", authority_.IssueFor("trainer").key}, "BAD_SECURITY",
                "missing.crt: cannot be read");
  ExpectRefused(authority_.Issue("old", {.uris = {trainer}, .from = -absl::Hours(2), .until = -absl::Hours(1)}),
                "CERTIFICATE_EXPIRED", "expired at");
  ExpectRefused(authority_.Issue("early", {.uris = {trainer}, .from = absl::Hours(1), .until = absl::Hours(2)}),
                "CERTIFICATE_NOT_YET_VALID", "not valid before");
  const testing::TestAuthority other;
  ExpectRefused(other.IssueFor("trainer"), "BAD_SECURITY", "does not come from an authority in tls_ca");
  ExpectRefused(authority_.IssueFor("rollouter"), "BAD_SECURITY", "of a rollouter, and this is a trainer");
  ExpectRefused(authority_.Issue("bare", {}), "BAD_SECURITY", "gives no role");
  ExpectRefused({authority_.IssueFor("trainer").certificate, authority_.IssueFor("viewer").key}, "BAD_SECURITY",
                "not that of the certificate");
}

TEST_F(CredentialsTest, ARolePlaceholderInAPathIsTheRole) {
  authority_.IssueFor("rollouter");
  authority_.IssueFor("admin");
  TransportSecurity::Options options = {.role = "rollouter",
                                        .tls_cert = authority_.folder() + "/{role}.crt",
                                        .tls_key = authority_.folder() + "/{role}.key",
                                        .tls_ca = authority_.ca()};
  EXPECT_TRUE(TransportSecurity::Load(options).ok());
  options.role = "";
  EXPECT_TRUE(TransportSecurity::Load(options).ok());
  options.role = "trainer";
  EXPECT_THAT(std::string(TransportSecurity::Load(options).status().message()), HasSubstr("trainer.crt"));
}

TEST_F(CredentialsTest, ADaemonThatCallsOthersByTokenNeedsOneOfItsRole) {
  const std::string admin = authority_.WriteSecret("tokens", "admin " + std::string(32, 'a'));
  const absl::Status status = TransportSecurity::Load({.role = "rollouter", .token_file = admin}).status();
  EXPECT_EQ(ErrorReason(status), "BAD_SECURITY");
  EXPECT_THAT(std::string(status.message()), HasSubstr("has no token of rollouter"));
  EXPECT_TRUE(TransportSecurity::Load({.role = "synchronizer", .token_file = admin}).ok());
}

TEST_F(CredentialsTest, WithoutFilesThereIsNoSecurity) {
  EXPECT_EQ(*TransportSecurity::Load({.role = "trainer"}), nullptr);
}

}  // namespace
}  // namespace syncopate::auth
