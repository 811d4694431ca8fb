// What a trainer asks a worker of users' Python: the tools that prompts show.
#include "services/trainer/environment_tools.h"

#include <gmock/gmock.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "syncopate/v1/environment.grpc.pb.h"
#include "tests/support/process.h"
#include "tests/support/status_matchers.h"

namespace syncopate::trainerd {
namespace {

using ::testing::AllOf;
using testing::HasMessage;
using testing::HasReason;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;

constexpr char kTools[] = R"([{"type": "function", "function": {"name": "look"}}])";

class FakeWorker final : public v1::EnvironmentService::Service {
 public:
  FakeWorker(const std::string& address, std::string tools) : tools_(std::move(tools)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeWorker() override { server_->Shutdown(std::chrono::system_clock::now()); }

 private:
  grpc::Status Describe(grpc::ServerContext*, const v1::DescribeRequest*, v1::DescribeResponse* response) override {
    response->set_digest("d1");
    response->add_environments()->set_name("bare");
    auto* desk = response->add_environments();
    desk->set_name("desk");
    desk->set_plays(true);
    desk->set_tools_json(tools_);
    return grpc::Status::OK;
  }

  const std::string tools_;
  std::unique_ptr<grpc::Server> server_;
};

class EnvironmentToolsTest : public ::testing::Test {
 protected:
  EnvironmentToolsTest() {
    config_.mutable_environment()->set_name("desk");
    config_.mutable_environment()->set_address(address_);
    config_.mutable_data()->set_files("rows.jsonl");
    config_.mutable_security()->set_tls_reload("10s");
  }
  // Never told to stop; a look takes no time.
  absl::StatusOr<trainer::EnvironmentTools> Ask(absl::Duration within = absl::Seconds(30)) const {
    return AskForTools(
        config_, [](absl::Duration) { return false; }, within);
  }

  testing::TempDir dir_;
  const std::string address_ = absl::StrCat("unix:", dir_.path(), "/w.sock");
  v1::RunConfig config_;
};

TEST_F(EnvironmentToolsTest, AreThoseThatTheWorkerDescribes) {
  FakeWorker worker(address_, kTools);
  const auto tools = Ask();
  ASSERT_THAT(tools, IsOk());
  ASSERT_EQ(tools->size(), 1u);
  EXPECT_EQ(tools->at("desk"), nlohmann::ordered_json::parse(kTools));
}

TEST_F(EnvironmentToolsTest, AWorkerThatStartsLaterIsWaitedFor) {
  std::unique_ptr<FakeWorker> worker;
  const auto tools = AskForTools(config_, [&](absl::Duration) {
    if (worker == nullptr) worker = std::make_unique<FakeWorker>(address_, kTools);
    return false;
  });
  ASSERT_THAT(tools, IsOk());
  EXPECT_EQ(tools->size(), 1u);
}

TEST_F(EnvironmentToolsTest, WithoutAWorkerThatAnswersARunHasNone) {
  EXPECT_THAT(Ask(absl::ZeroDuration()).value(), IsEmpty());
}

TEST_F(EnvironmentToolsTest, AnotherWorkerIsAskedWhereOneIsAway) {
  const std::string second = absl::StrCat("unix:", dir_.path(), "/second.sock");
  config_.mutable_environment()->set_address(absl::StrCat(address_, ",", second));
  FakeWorker worker(second, kTools);
  EXPECT_EQ(Ask().value().size(), 1u);
}

TEST_F(EnvironmentToolsTest, AnEmptyListOfToolsIsNone) {
  FakeWorker worker(address_, "[]");
  EXPECT_THAT(Ask().value(), IsEmpty());
}

TEST_F(EnvironmentToolsTest, ATrainerThatIsToldToStopWaitsNoLonger) {
  EXPECT_TRUE(absl::IsCancelled(AskForTools(config_, [](absl::Duration) { return true; }).status()));
}

TEST_F(EnvironmentToolsTest, NobodyIsAskedWhereNoRowsArePlayedAtAWorker) {
  config_.mutable_environment()->set_address(absl::StrCat("unix:", dir_.path(), "/elsewhere/w.sock"));
  EXPECT_THAT(Ask().value(), IsEmpty()) << "the socket's folder is on another host";
  config_.mutable_environment()->set_address(address_);
  config_.mutable_data()->clear_files();
  EXPECT_THAT(Ask().value(), IsEmpty()) << "a built-in task";
  config_.mutable_data()->set_files("rows.jsonl");
  config_.mutable_environment()->clear_name();
  EXPECT_THAT(Ask().value(), IsEmpty()) << "answers of one turn";
}

TEST_F(EnvironmentToolsTest, OtherCodeAndWhatIsNoToolAreRefused) {
  {
    FakeWorker worker(address_, R"(["look"])");
    EXPECT_THAT(Ask(), AllOf(HasReason("BAD_TOOLS"), HasMessage(HasSubstr("the environment desk"))));
  }
  FakeWorker worker(address_, kTools);
  config_.mutable_environment()->set_digest("d2");
  EXPECT_THAT(Ask(), HasReason("WRONG_DIGEST"));
}

}  // namespace
}  // namespace syncopate::trainerd
