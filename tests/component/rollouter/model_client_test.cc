// A rollouter checks what a trainer says about the model.
#include "services/rollouter/model_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/daemon/exit_code.h"
#include "base/sha256.h"
#include "base/status.h"
#include "services/rpc/server.h"
#include "services/wire/model_codec.h"
#include "syncopate/v1/trainer.grpc.pb.h"
#include "tests/support/eventually.h"
#include "tests/support/notification.h"
#include "tests/support/small_model.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_authority.h"

namespace syncopate::rollouterd {
namespace {

using testing::HasReason;
using testing::IsOk;

using Answer = std::vector<v1::GetModelResponse>;

const std::string kGeneration = R"({"temperature":0.7,"top_p":0.8})";

v1::GetModelResponse Chunk(int file, int64_t offset, const std::string& data) {
  v1::GetModelResponse message;
  message.mutable_chunk()->set_file(file);
  message.mutable_chunk()->set_offset(offset);
  message.mutable_chunk()->set_data(data);
  return message;
}

// A description, and one file in two parts.
Answer RightAnswer() {
  const model::ModelConfig shape = testing::SmallModel();
  v1::GetModelResponse first;
  v1::ModelDescription& description = *first.mutable_model();
  description.set_run_id("run-1");
  *description.mutable_shape() = wire::ToProto(shape);
  description.set_dtype(v1::DTYPE_FLOAT32);
  description.set_bucket_bytes(Manifest::kDefaultBucketBytes);
  description.set_manifest_fingerprint(model::MakeManifest(shape, DType::kFloat32).value().fingerprint());
  v1::ModelFile& file = *description.add_files();
  file.set_name("generation_config.json");
  file.set_sha256(Sha256Hex(kGeneration));
  file.set_bytes(static_cast<int64_t>(kGeneration.size()));
  return {first, Chunk(0, 0, kGeneration.substr(0, 7)), Chunk(0, 7, kGeneration.substr(7))};
}

// A trainer that sends the given messages, right or wrong.
class ScriptedTrainer final : public v1::TrainerService::Service {
 public:
  // `stays_open`: the call is over when the caller has ended it.
  explicit ScriptedTrainer(Answer answer, std::shared_ptr<const auth::TransportSecurity> security = nullptr,
                           bool stays_open = false)
      : answer_(std::move(answer)),
        stays_open_(stays_open),
        server_(rpc::Server::Start({.security = std::move(security)}, {this}).value()) {}
  ~ScriptedTrainer() override { server_->Stop(absl::ZeroDuration()); }

  grpc::Status GetModel(grpc::ServerContext* context, const v1::GetModelRequest*,
                        grpc::ServerWriter<v1::GetModelResponse>* writer) override {
    for (const v1::GetModelResponse& message : answer_) {
      if (!writer->Write(message)) break;
    }
    if (stays_open_) ended.Put(testing::Eventually(kTestDeadline, [&] { return context->IsCancelled(); }));
    return grpc::Status::OK;
  }
  absl::StatusOr<LearnedModel> AskedBy(const std::shared_ptr<const auth::TransportSecurity>& security = nullptr) const {
    return rollouterd::GetModel(server_->address(), security, absl::Now() + absl::Seconds(60));
  }
  // A request with cards is that of a rollouter that shares a device.
  absl::StatusOr<LearnedModel> AskedFor(absl::Duration deadline) const {
    v1::GetModelRequest request;
    request.add_cards("GPU-1");
    return rollouterd::GetModel(server_->address(), nullptr, Clock::Real()->Now() + deadline, request);
  }

  Mailbox<bool> ended;  // of calls that stay open: whether the caller has ended it

 private:
  const Answer answer_;
  const bool stays_open_;
  const std::unique_ptr<rpc::Server> server_;
};

TEST(ModelClientTest, LearnsTheModelOverTlsFromATrainer) {
  const testing::TestAuthority authority;
  const ScriptedTrainer trainer(RightAnswer(), authority.SecurityFor("trainer"));
  const auto model = trainer.AskedBy(authority.SecurityFor("rollouter"));
  ASSERT_THAT(model, IsOk());
  EXPECT_EQ(model->run_id, "run-1");
  EXPECT_EQ(model->shape.vocab_size, testing::SmallModel().vocab_size);
  EXPECT_EQ(model->files.at("generation_config.json"), kGeneration);
  EXPECT_EQ(model->tokenizer, nullptr);
}

TEST(ModelClientTest, OnASharedDeviceTheCallStaysOpenUntilItsPresenceIsFreed) {
  ScriptedTrainer trainer(RightAnswer(), nullptr, /*stays_open=*/true);
  auto model = trainer.AskedFor(absl::Seconds(60));
  ASSERT_THAT(model, IsOk());
  EXPECT_EQ(model->files.at("generation_config.json"), kGeneration);
  ASSERT_NE(model->presence, nullptr);
  EXPECT_EQ(trainer.ended.size(), 0u);
  model->presence = nullptr;
  ASSERT_TRUE(trainer.ended.WaitFor(1));
  EXPECT_TRUE(trainer.ended.All()[0]);
}

TEST(ModelClientTest, OnASharedDeviceAnAnswerThatDoesNotComeWholeIsGivenUpAtTheDeadline) {
  Answer answer = RightAnswer();
  answer.pop_back();
  ScriptedTrainer trainer(answer, nullptr, /*stays_open=*/true);
  EXPECT_THAT(trainer.AskedFor(absl::Milliseconds(200)).status().code(), absl::StatusCode::kCancelled);
  ASSERT_TRUE(trainer.ended.WaitFor(1));
}

TEST(ModelClientTest, ATrainerThatTakesNoTurnsThereEndsTheCallAndTheModelIsLearned) {
  ScriptedTrainer trainer(RightAnswer());
  EXPECT_THAT(trainer.AskedFor(absl::Seconds(60)), IsOk());
}

TEST(ModelClientTest, HearsNobodyWhoseCertificateIsNotATrainers) {
  const testing::TestAuthority authority;
  const ScriptedTrainer impostor(RightAnswer(), authority.SecurityFor("rollouter"));
  EXPECT_EQ(impostor.AskedBy(authority.SecurityFor("rollouter")).status().code(), absl::StatusCode::kUnavailable);
  const ScriptedTrainer without_tls(RightAnswer());
  EXPECT_EQ(without_tls.AskedBy(authority.SecurityFor("rollouter")).status().code(), absl::StatusCode::kUnavailable);
}

TEST(ModelClientTest, AModelThatIsNoLongerTheRunsIsAskedForAgain) {
  for (const char* reason : {"MODEL_MISMATCH", "DTYPE_MISMATCH"}) {
    const absl::Status mismatch = Error(absl::StatusCode::kFailedPrecondition, reason, "the models differ");
    EXPECT_EQ(daemon::ToExitCode(mismatch), daemon::kExitBadConfig) << "of a rollouter that got its model";
    const absl::Status renamed = RenameMismatch(mismatch);
    EXPECT_THAT(renamed, HasReason("MODEL_CHANGED"));
    EXPECT_EQ(renamed.message(), mismatch.message());
    EXPECT_EQ(daemon::ToExitCode(renamed), daemon::kExitLostPeer);
  }
  const absl::Status other = Error(absl::StatusCode::kUnavailable, "SYNCHRONIZER_LOST", "gone");
  EXPECT_THAT(RenameMismatch(other), HasReason("SYNCHRONIZER_LOST"));
  EXPECT_THAT(RenameMismatch(absl::OkStatus()), IsOk());
}

struct Lie {
  std::string name;
  std::function<void(Answer*)> tell;
  std::string reason = "BAD_MODEL_ANSWER";
};

class ModelClientLieTest : public ::testing::TestWithParam<Lie> {};

TEST_P(ModelClientLieTest, IsRefused) {
  Answer answer = RightAnswer();
  GetParam().tell(&answer);
  EXPECT_THAT(ScriptedTrainer(answer).AskedBy().status(), HasReason(GetParam().reason));
}

v1::ModelDescription* Description(Answer* answer) { return answer->front().mutable_model(); }

INSTANTIATE_TEST_SUITE_P(
    ModelClientTest, ModelClientLieTest,
    ::testing::Values(
        Lie{"Nothing", [](Answer* answer) { answer->clear(); }},
        Lie{"NoDescription", [](Answer* answer) { answer->erase(answer->begin()); }},
        Lie{"TwoDescriptions", [](Answer* answer) { answer->push_back(answer->front()); }},
        Lie{"NoDtype", [](Answer* answer) { Description(answer)->clear_dtype(); }},
        Lie{"AnotherManifest", [](Answer* answer) { Description(answer)->set_manifest_fingerprint(1); }},
        Lie{"NoBuckets", [](Answer* answer) { Description(answer)->set_bucket_bytes(-1); }, "BAD_MANIFEST"},
        Lie{"NoLayers", [](Answer* answer) { Description(answer)->mutable_shape()->set_num_hidden_layers(0); },
            "BAD_MODEL"},
        Lie{"AnEndBeyondTheVocabulary",
            [](Answer* answer) {
              Description(answer)->add_end_token_ids(static_cast<int32_t>(testing::SmallModel().vocab_size));
            }},
        Lie{"AnEndBelowZero", [](Answer* answer) { Description(answer)->add_end_token_ids(-1); }},
        Lie{"AnotherDigest", [](Answer* answer) { Description(answer)->mutable_files(0)->set_sha256("ab"); }},
        Lie{"AFileThatIsTooShort", [](Answer* answer) { answer->pop_back(); }},
        Lie{"AFileThatIsTooLong", [](Answer* answer) { answer->push_back(Chunk(0, 31, "x")); }},
        Lie{"AFileOfNoLength", [](Answer* answer) { Description(answer)->mutable_files(0)->set_bytes(-1); }},
        Lie{"PartsInAnotherOrder", [](Answer* answer) { std::swap((*answer)[1], (*answer)[2]); }},
        Lie{"AFileThatIsNotThere", [](Answer* answer) { answer->push_back(Chunk(1, 0, "x")); }},
        Lie{"AFileBelowTheFirst", [](Answer* answer) { answer->push_back(Chunk(-1, 0, "x")); }},
        Lie{"TooManyFiles",
            [](Answer* answer) {
              for (int i = 0; i < 16; ++i) Description(answer)->add_files();
            }}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace syncopate::rollouterd
