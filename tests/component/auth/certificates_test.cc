// Valid and invalid certificates, on either end of a connection.
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "services/rpc/channel.h"
#include "services/rpc/server.h"
#include "tests/component/auth/raw_call.h"
#include "tests/component/rpc/echo_service.h"
#include "tests/support/test_authority.h"

namespace syncopate::auth {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Read(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// The channel of a stranger: it shows the given certificate and does not verify the server.
std::shared_ptr<grpc::Channel> ShowAnything(const std::string& address, const testing::TestAuthority::Files& files) {
  grpc::experimental::TlsChannelCredentialsOptions tls;
  if (!files.certificate.empty()) {
    tls.set_certificate_provider(std::make_shared<grpc::experimental::StaticDataCertificateProvider>(
        std::vector<grpc::experimental::IdentityKeyCertPair>{{Read(files.key), Read(files.certificate)}}));
    tls.watch_identity_key_cert_pairs();
  }
  tls.set_verify_server_certs(false);
  tls.set_check_call_host(false);
  tls.set_certificate_verifier(std::make_shared<grpc::experimental::NoOpCertificateVerifier>());
  return grpc::CreateChannel(address, grpc::experimental::TlsCredentials(tls));
}

struct WrongCertificate {
  std::string name;
  std::function<testing::TestAuthority::Files(const testing::TestAuthority&, const std::string& role)> make;
  std::string words;  // the message of the refusal
};

testing::TestAuthority::Files MakeDated(const testing::TestAuthority& authority, const std::string& role,
                                        absl::Duration from) {
  return authority.Issue("wrong", {{testing::TestAuthority::Spiffe(role)}, from, from + absl::Hours(1)});
}

// `other` must live as long as the returned object.
std::vector<WrongCertificate> WrongCertificates(const testing::TestAuthority& other) {
  return {
      {"expired", [](auto& ours, auto& role) { return MakeDated(ours, role, -absl::Hours(2)); }, "CERTIFICATE_EXPIRED"},
      {"not yet valid", [](auto& ours, auto& role) { return MakeDated(ours, role, absl::Hours(2)); },
       "CERTIFICATE_NOT_YET_VALID"},
      {"of another authority", [&other](auto&, auto& role) { return other.IssueFor(role); }, "UNKNOWN_AUTHORITY"},
      {"without a role", [](auto& ours, auto&) { return ours.Issue("wrong", {}); }, "NO_ROLE"},
      {"of two roles",
       [](auto& ours, auto& role) {
         return ours.Issue("wrong",
                           {.uris = {testing::TestAuthority::Spiffe(role), testing::TestAuthority::Spiffe("admin")}});
       },
       "NO_ROLE"},
      {"of another trust domain",
       [](auto& ours, auto& role) { return ours.Issue("wrong", {.uris = {"spiffe://other/role/" + role}}); },
       "NO_ROLE"}};
}

// The synchronizer answers NOT_FOUND to a call of EvictMember that is allowed.
class CertificatesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    security_ = authority_.SecurityFor("synchronizer");
    server_ = rpc::Server::Start({.security = security_}, {&service_}).value();
  }
  static absl::Status Evict(const std::shared_ptr<grpc::Channel>& channel) {
    auto stub = v1::SynchronizerService::NewStub(channel);
    return rpc::CallUnary(stub.get(), &v1::SynchronizerService::Stub::EvictMember, v1::EvictMemberRequest(),
                          absl::Seconds(60))
        .status();
  }

  testing::TestAuthority authority_;
  const testing::TestAuthority other_;
  rpc::EchoService service_;
  std::shared_ptr<const TransportSecurity> security_;
  std::unique_ptr<rpc::Server> server_;
};

TEST_F(CertificatesTest, ARightOneIsLetThrough) {
  auto channel = rpc::MakeChannel(server_->address(), {.security = authority_.SecurityFor("admin")}).value();
  EXPECT_EQ(ErrorReason(Evict(channel)), "NO_SUCH_MEMBER");
  EXPECT_EQ(security_->refusals(), 0);
}

TEST_F(CertificatesTest, AWrongOneOfAClientIsRefusedInTheHandshakeWhateverItsRole) {
  int64_t refused = 0;
  for (AuthRole role : AllAuthRoles()) {
    for (const WrongCertificate& wrong : WrongCertificates(other_)) {
      SCOPED_TRACE(std::string(AuthRoleName(role)) + " with a certificate " + wrong.name);
      const absl::Time begin = absl::Now();
      const absl::Status status = Evict(ShowAnything(server_->address(), wrong.make(authority_, AuthRoleName(role))));
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("the server's log says whether it refused"));
      EXPECT_LT(absl::Now() - begin, absl::Seconds(30));  // the refusal came before the deadline
      EXPECT_GE(security_->refusals(), ++refused);
      refused = security_->refusals();
    }
  }
}

TEST_F(CertificatesTest, AMissingOneIsRefusedInTheHandshake) {
  EXPECT_EQ(Evict(ShowAnything(server_->address(), {})).code(), absl::StatusCode::kUnavailable);
  EXPECT_GE(security_->refusals(), 1);
}

TEST_F(CertificatesTest, APlaintextClientIsRefused) {
  EXPECT_EQ(Evict(rpc::MakeChannel(server_->address()).value()).code(), absl::StatusCode::kUnavailable);
}

TEST_F(CertificatesTest, AWrongRoleIsRefusedByName) {
  for (const char* role : {"trainer", "rollouter", "synchronizer", "viewer"}) {
    const absl::Status status =
        Evict(rpc::MakeChannel(server_->address(), {.security = authority_.SecurityFor(role)}).value());
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string("the role ") + role + " may not call"));
  }
}

TEST_F(CertificatesTest, AWrongOneOfAServerIsRefusedByTheClientWhichSaysWhy) {
  auto client = authority_.SecurityFor("admin");
  for (const WrongCertificate& wrong : WrongCertificates(other_)) {
    SCOPED_TRACE(wrong.name);
    const testing::TestAuthority::Files files = wrong.make(authority_, "synchronizer");
    grpc::experimental::TlsServerCredentialsOptions tls(
        std::make_shared<grpc::experimental::StaticDataCertificateProvider>(
            std::vector<grpc::experimental::IdentityKeyCertPair>{{Read(files.key), Read(files.certificate)}}));
    tls.watch_identity_key_cert_pairs();
    int port = 0;
    rpc::EchoService impostor;
    auto stranger = grpc::ServerBuilder()
                        .AddListeningPort("127.0.0.1:0", grpc::experimental::TlsServerCredentials(tls), &port)
                        .RegisterService(&impostor)
                        .BuildAndStart();
    ASSERT_NE(stranger, nullptr);
    const absl::Status status =
        Evict(rpc::MakeChannel("127.0.0.1:" + std::to_string(port), {.security = client}).value());
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(status.message()), HasSubstr(wrong.words));
  }
}

TEST_F(CertificatesTest, AServerOfAnotherRoleThanWasDialledIsRefused) {
  auto channel =
      rpc::MakeChannel(server_->address(), {.security = authority_.SecurityFor("rollouter"), .peer_role = "trainer"})
          .value();
  const absl::Status status = Evict(channel);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("is that of a synchronizer, not of a trainer"));
}

TEST_F(CertificatesTest, ASecuredClientDoesNotTalkToAPlaintextServer) {
  rpc::EchoService open;
  auto plain = rpc::Server::Start({}, {&open}).value();
  const absl::Status status =
      Evict(rpc::MakeChannel(plain->address(), {.security = authority_.SecurityFor("admin")}).value());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

TEST_F(CertificatesTest, ARefusedChannelConnectsAgainOnlyAfterItsBackoff) {
  const testing::TestAuthority other;
  auto client = other.SecurityFor("admin");
  auto channel = rpc::MakeChannel(server_->address(), {.min_reconnect_backoff = absl::Hours(1),
                                                       .max_reconnect_backoff = absl::Hours(1),
                                                       .security = client})
                     .value();
  for (int i = 0; i < 50; ++i) EXPECT_EQ(Evict(channel).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(client->refusals(), 1);
}

TEST_F(CertificatesTest, AnOpenPortWithoutTlsIsSaidLoudlyAndOneWithTlsIsNot) {
  ::testing::internal::CaptureStderr();
  ASSERT_TRUE(rpc::Server::Start({.address = "0.0.0.0:0", .insecure_bind = true}, {}).ok());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("INSECURE: 0.0.0.0:"));
  ::testing::internal::CaptureStderr();
  ASSERT_TRUE(rpc::Server::Start({.address = "0.0.0.0:0", .insecure_bind = true, .security = security_}, {}).ok());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), Not(HasSubstr("INSECURE")));
}

TEST_F(CertificatesTest, AnyAddressMayBeBoundWithTlsButNotWithTokensAlone) {
  EXPECT_TRUE(rpc::Server::Start({.address = "0.0.0.0:0", .security = security_}, {}).ok());
  const std::string tokens = authority_.WriteSecret("tokens", "admin " + std::string(32, 'a'));
  auto unencrypted = *TransportSecurity::Load({.role = "synchronizer", .token_file = tokens});
  EXPECT_EQ(ErrorReason(rpc::Server::Start({.address = "0.0.0.0:0", .security = unencrypted}, {}).status()),
            "INSECURE_BIND");
}

}  // namespace
}  // namespace syncopate::auth
