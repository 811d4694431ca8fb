#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/time/clock.h"
#include "base/certificate.h"
#include "base/credential_file.h"
#include "base/status.h"
#include "tests/support/test_authority.h"

namespace syncopate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Read(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class CertificateTest : public ::testing::Test {
 protected:
  absl::Status Verify(const std::string& pem, TrustAnchors::Use use = TrustAnchors::Use::kClient) {
    return (*TrustAnchors::Parse(Read(authority_.ca())))->Verify(pem, "", use, absl::Now());
  }
  std::string IssuePem(const testing::TestAuthority::Wish& wish) {
    return Read(authority_.Issue("one", wish).certificate);
  }

  testing::TestAuthority authority_;
};

TEST_F(CertificateTest, SaysWhoseItIs) {
  const absl::StatusOr<CertificateFacts> facts = ReadCertificate(IssuePem({.uris = {"spiffe://a/role/b", "urn:x"}}));
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_EQ(facts->subject, "CN=one");
  EXPECT_THAT(facts->uris, ElementsAre("spiffe://a/role/b", "urn:x"));
  EXPECT_LT(facts->not_before, facts->not_after);
}

TEST_F(CertificateTest, OfTheAuthorityAndOfNowIsGood) {
  const std::string pem = IssuePem({});
  EXPECT_TRUE(Verify(pem, TrustAnchors::Use::kClient).ok()) << Verify(pem);
  EXPECT_TRUE(Verify(pem, TrustAnchors::Use::kServer).ok());
}

TEST_F(CertificateTest, ThatIsExpiredOrNotYetValidIsRefusedWithItsDate) {
  const absl::Status expired = Verify(IssuePem({.from = -absl::Hours(2), .until = -absl::Hours(1)}));
  EXPECT_EQ(ErrorReason(expired), "CERTIFICATE_EXPIRED");
  EXPECT_THAT(std::string(expired.message()), HasSubstr("CN=one expired at 20"));
  const absl::Status early = Verify(IssuePem({.from = absl::Hours(1), .until = absl::Hours(2)}));
  EXPECT_EQ(ErrorReason(early), "CERTIFICATE_NOT_YET_VALID");
  EXPECT_THAT(std::string(early.message()), HasSubstr("CN=one is not valid before 20"));
}

TEST_F(CertificateTest, OfAnotherAuthorityIsRefusedAlsoIfThatBringsItsOwn) {
  const testing::TestAuthority other;
  const std::string pem = Read(other.IssueFor("admin").certificate);
  EXPECT_EQ(ErrorReason(Verify(pem)), "UNKNOWN_AUTHORITY");
  EXPECT_EQ(ErrorReason(Verify(pem + Read(other.ca()))), "UNKNOWN_AUTHORITY");
}

TEST_F(CertificateTest, WhoseTextWasChangedIsRefused) {
  std::string pem = IssuePem({});
  for (size_t i = 40; i < pem.size() - 40; i += 97) {
    std::string changed = pem;
    changed[i] = changed[i] == 'A' ? 'B' : 'A';
    EXPECT_EQ(Verify(changed).code(), absl::StatusCode::kUnauthenticated) << i;
  }
}

TEST_F(CertificateTest, GarbageIsNoCertificateAndNoAuthority) {
  for (const std::string& text : {std::string(), std::string("-----BEGIN CERTIFICATE-----\nAAAA\n"),
                                  std::string(100000, 'x'), Read(authority_.IssueFor("admin").key)}) {
    EXPECT_EQ(ErrorReason(ReadCertificate(text).status()), "BAD_CERTIFICATE");
    EXPECT_EQ(ErrorReason(TrustAnchors::Parse(text).status()), "BAD_CERTIFICATE");
    EXPECT_EQ(ErrorReason(Verify(text)), "BAD_CERTIFICATE");
  }
}

TEST_F(CertificateTest, AKeyFitsItsOwnCertificateOnly) {
  const testing::TestAuthority::Files one = authority_.IssueFor("admin");
  const testing::TestAuthority::Files two = authority_.IssueFor("viewer");
  EXPECT_TRUE(CheckKey(Read(one.certificate), Read(one.key)).ok());
  EXPECT_EQ(ErrorReason(CheckKey(Read(one.certificate), Read(two.key))), "BAD_KEY");
  EXPECT_EQ(ErrorReason(CheckKey(Read(one.certificate), "no key")), "BAD_KEY");
}

class CredentialFileTest : public CertificateTest {};

TEST_F(CredentialFileTest, ASecretThatOthersMayReadIsRefused) {
  const std::string path = authority_.WriteSecret("token", "x");
  for (mode_t mode : {0400, 0600, 0440}) {
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
    EXPECT_TRUE(ReadCredentialFile(path, Secrecy::kSecret).ok()) << mode;
  }
  for (mode_t mode : {0404, 0644, 0660, 0402, 0777}) {
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
    const absl::Status status = ReadCredentialFile(path, Secrecy::kSecret).status();
    EXPECT_EQ(ErrorReason(status), "BAD_SECURITY") << mode;
    EXPECT_THAT(std::string(status.message()), HasSubstr("chmod 0400"));
    EXPECT_TRUE(ReadCredentialFile(path, Secrecy::kPublic).ok()) << mode;
  }
}

TEST_F(CredentialFileTest, WhatIsNoFileOfContentsIsRefusedByName) {
  const std::string pipe = authority_.folder() + "/pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const std::string large = authority_.WriteSecret("large", std::string((1 << 20) + 1, 'x'));
  for (const std::string& path :
       {authority_.folder() + "/missing", authority_.folder(), pipe, authority_.WriteSecret("empty", ""), large}) {
    const absl::Status status = ReadCredentialFile(path, Secrecy::kSecret).status();
    EXPECT_EQ(ErrorReason(status), "BAD_SECURITY");
    EXPECT_THAT(std::string(status.message()), HasSubstr(path));
  }
}

TEST_F(CredentialFileTest, SymbolicLinksAreFollowedAsKubernetesMountsSecretsByThem) {
  const std::string path = authority_.WriteSecret("token", "x");
  std::filesystem::create_symlink(path, authority_.folder() + "/link");
  EXPECT_EQ(*ReadCredentialFile(authority_.folder() + "/link", Secrecy::kSecret), "x");
}

}  // namespace
}  // namespace syncopate
