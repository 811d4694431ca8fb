#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/time/clock.h"
#include "services/rpc/channel.h"
#include "services/rpc/server.h"
#include "tests/component/rpc/echo_service.h"
#include "tests/support/test_authority.h"

namespace syncopate::auth {
namespace {

std::string Read(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class RotationTest : public ::testing::Test {
 protected:
  void SetUp() override {
    server_security_ = authority_.SecurityFor("synchronizer");
    client_security_ = authority_.SecurityFor("trainer");
    server_ = rpc::Server::Start({.security = server_security_}, {&service_}).value();
    service_.set_on_message([](const std::shared_ptr<rpc::JoinServerStream>& stream, const v1::JoinRequest& request) {
      stream->Write(rpc::TextResponse(request.leave().reason()));
    });
  }

  std::shared_ptr<grpc::Channel> Connect() {
    return rpc::MakeChannel(server_->address(), {.security = client_security_, .peer_role = "synchronizer"}).value();
  }
  // The certificate that a new connection gets; "" if the connection is refused.
  std::string ShownByServer() {
    auto stub = v1::SynchronizerService::NewStub(Connect());
    grpc::ClientContext context;
    context.set_deadline(rpc::CallDeadline(absl::Seconds(60)));
    v1::PublishVersionResponse response;
    const grpc::Status status = stub->PublishVersion(&context, {}, &response);
    // This service answers UNIMPLEMENTED to an authorised call.
    if (status.error_code() != grpc::StatusCode::UNIMPLEMENTED) return "";
    auto shown = context.auth_context()->FindPropertyValues("x509_pem_cert");
    return shown.empty() ? "" : std::string(shown.front().data(), shown.front().size());
  }

  testing::TestAuthority authority_;
  rpc::EchoService service_;
  std::shared_ptr<const TransportSecurity> server_security_, client_security_;
  std::unique_ptr<rpc::Server> server_;
};

TEST_F(RotationTest, NewCertificatesHoldForNewConnectionsAndOpenStreamsGoOn) {
  auto stream = rpc::JoinClientStream::Create();
  Mailbox<v1::JoinResponse> echoes;
  Mailbox<absl::Status> ended;
  auto stub = v1::SynchronizerService::NewStub(Connect());
  stream->Start([&](auto* context, auto* reactor) { stub->async()->Join(context, reactor); },
                {.on_message = [&](v1::JoinResponse response) { echoes.Put(std::move(response)); },
                 .on_done = [&](const absl::Status& status) { ended.Put(status); }});
  ASSERT_TRUE(stream->Write(rpc::TextRequest("before")));
  ASSERT_TRUE(echoes.WaitFor(1));
  const std::string old = Read(authority_.folder() + "/synchronizer.crt");
  ASSERT_EQ(ShownByServer(), old);

  authority_.IssueFor("trainer");
  const std::string renewed = Read(authority_.IssueFor("synchronizer").certificate);
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (ShownByServer() != renewed) ASSERT_LT(absl::Now(), deadline);

  ASSERT_TRUE(stream->Write(rpc::TextRequest("after")));
  ASSERT_TRUE(echoes.WaitFor(2));
  EXPECT_EQ(echoes.All().back().evicted().reason(), "after");
  EXPECT_EQ(ended.size(), 0u);
  EXPECT_EQ(server_security_->refusals(), 0);
  stream->Cancel();
  EXPECT_TRUE(ended.WaitFor(1));
}

TEST_F(RotationTest, AnAuthorityThatDoesNotVouchForTheOwnCertificateIsNotTakenAndThatIsSaid) {
  ASSERT_NE(ShownByServer(), "");
  const testing::TestAuthority other;
  std::filesystem::copy_file(other.ca(), authority_.folder() + "/new");
  std::filesystem::rename(authority_.folder() + "/new", authority_.ca());
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (server_security_->health().ok()) ASSERT_LT(absl::Now(), deadline);
  EXPECT_EQ(ErrorReason(server_security_->health()), "BAD_SECURITY");
  EXPECT_NE(ShownByServer(), "");
}

}  // namespace
}  // namespace syncopate::auth
