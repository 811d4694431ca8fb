// Numbers that are not finite, from a rollouter, from training and from a file: each is refused where it enters, and
// the error reaches a place where someone can act on it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "base/sha256.h"
#include "base/uuid.h"
#include "services/rpc/status.h"
#include "syncopate/v1/synchronizer.grpc.pb.h"
#include "syncopate/v1/trainer.grpc.pb.h"
#include "tests/component/trajectory/fake_rollouter.h"
#include "tests/support/run_harness.h"
#include "tests/support/status_matchers.h"
#include "trainer/checkpoint/checkpoint_manifest.h"

namespace syncopate::testing::non_finite_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using trainerd::FakeRollouter;
using v1::SynchronizerService;
using v1::TrainerService;

constexpr size_t kInvalidInRow = 10;  // invalid groups in a row that begin a quarantine

// The right answer, except for its first log-probability.
TrajectoryGroup AnswerWith(const Lease& lease, float logprob) {
  TrajectoryGroup group;
  group.lease = lease.id;
  group.kind = lease.kind;
  group.prompt_ids = lease.prompt_ids;
  for (int32_t i = 0; i < lease.samples; ++i) {
    Trajectory sample;
    sample.tokens = lease.answer_ids;
    sample.logprobs.assign(sample.tokens.size(), -0.5f);
    sample.spans = {{lease.version, 0, static_cast<int32_t>(sample.tokens.size())}};
    group.samples.push_back(std::move(sample));
  }
  group.samples[0].logprobs[0] = logprob;
  return group;
}

// A run with rollouter-0, and a peer that takes leases as rollouter-66 does.
class HostileRollouterTest : public ::testing::Test {
 protected:
  HostileRollouterTest() : run_({"run.steps=1000000", "eval.every_steps=0", "checkpoint.every_steps=0"}) {}

  void SetUp() override {
    for (const char* role : {"synchronizer", "trainer", "rollouter"}) {
      auto daemon = run_.StartDaemon(role);
      ASSERT_THAT(daemon, IsOk());
      daemons_[role] = *std::move(daemon);
    }
    ASSERT_THAT(run_.AwaitStep(2), IsOk());
    trainer_ = *run_.Endpoint("trainer");
    auto status = Call<SynchronizerService>(run_.Endpoint("synchronizer")->grpc, &SynchronizerService::Stub::GetStatus,
                                            v1::SynchronizerServiceGetStatusRequest());
    ASSERT_THAT(status, IsOk());
    hostile_ = std::make_unique<FakeRollouter>(trainer_.grpc);
    hostile_->Hello({"rollouter", "rollouter-66", 0, 1, RandomUuid()}, status->run_id());
    ASSERT_THAT(hostile_->WaitForWelcome(), IsOk());
  }

  v1::TrainerServiceGetStatusResponse TrainerStatus() {
    auto status = Call<TrainerService>(trainer_.grpc, &TrainerService::Stub::GetStatus, {});
    EXPECT_THAT(status, IsOk());
    return status.ok() ? *status : v1::TrainerServiceGetStatusResponse();
  }
  v1::RollouterView View() {
    const v1::TrainerServiceGetStatusResponse status = TrainerStatus();
    for (const v1::RollouterView& view : status.rollouters()) {
      if (view.replica_id() == "rollouter-66") return view;
    }
    return {};
  }
  // Returns the n-th lease. The peer asks for more groups than the trainer has, which brings the first of the available
  // ones. The version that the peer claims to serve ages, so it repeats the request until a lease comes.
  absl::StatusOr<Lease> LeaseNumber(size_t n) {
    Eventually(kPatience, [&] {
      hostile_->Credits(1000, wire::FromProto(TrainerStatus().version()));
      return hostile_->leases() > n;
    });
    return hostile_->WaitForLease(n);
  }

  RunHarness run_;
  std::map<std::string, std::unique_ptr<Process>> daemons_;
  daemon::DaemonEndpoint trainer_;
  std::unique_ptr<FakeRollouter> hostile_;
};

TEST_F(HostileRollouterTest, ItsLogProbsAreRefusedWithTheReasonThenItGetsNoMoreLeasesAndEverybodyGoesOn) {
  const std::vector<float> bad = {std::nanf(""), std::numeric_limits<float>::infinity(),
                                  -std::numeric_limits<float>::infinity()};
  size_t answered = 0;
  auto refuse_one = [&] {
    auto lease = LeaseNumber(answered);
    ASSERT_THAT(lease, IsOk());
    hostile_->Submit(AnswerWith(*lease, bad[answered % bad.size()]));
    auto ack = hostile_->WaitForAck(answered);
    ASSERT_THAT(ack, IsOk());
    EXPECT_EQ(ack->result(), v1::ExchangeResponse::ACK_RESULT_INVALID);
    const absl::Status why = rpc::FromProto(ack->error());
    EXPECT_THAT(why, HasReason("BAD_LOGPROB"));
    EXPECT_THAT(why, HasMessage(AllOf(HasSubstr("sample 0"), HasSubstr("log-probability"))));
    ++answered;
  };
  while (answered < kInvalidInRow) ASSERT_NO_FATAL_FAILURE(refuse_one());
  // Counts the leases from before the quarantine: some may not have arrived yet, and the trainer counts those too.
  while (answered < hostile_->leases() || View().leased_groups() > 0) ASSERT_NO_FATAL_FAILURE(refuse_one());

  const v1::RollouterView view = View();
  EXPECT_TRUE(view.connected());
  EXPECT_EQ(view.invalid_groups(), static_cast<int64_t>(answered));
  EXPECT_GT(view.quarantine_seconds(), 0);
  EXPECT_EQ(TrainerStatus().invalid().at("BAD_LOGPROB"), static_cast<int64_t>(answered));
  EXPECT_GE(TrainerStatus().groups().at("failed_attempts"), static_cast<int64_t>(answered));
  EXPECT_THAT(daemons_["trainer"]->Log(), HasSubstr("rollouter-66 gets no prompts for 1m"));
  auto explained = run_.Ctl({"explain"});
  ASSERT_THAT(explained, IsOk());
  EXPECT_THAT(explained->output,
              AllOf(HasSubstr("quarantined"), HasSubstr("rollouter-66 gets no prompts"), HasSubstr("log-probability")));

  // The quarantined peer keeps asking and gets no lease; the trainer trains on the answers of others.
  hostile_->Credits(1000, wire::FromProto(TrainerStatus().version()));
  EXPECT_THAT(run_.AwaitStep(run_.LastStep() + 5), IsOk());
  EXPECT_EQ(hostile_->leases(), answered);
  EXPECT_TRUE(View().connected());
  for (const auto& [role, daemon] : daemons_) EXPECT_TRUE(daemon->Running()) << role << "\n" << daemon->Log();
}

// Waits for the end of the run, which must be a failure; returns what was printed.
std::string OutputOfFailed(RunHarness& run, const absl::StatusOr<std::unique_ptr<Process>>& process) {
  EXPECT_THAT(process, IsOk());
  if (!process.ok()) return "";
  auto exit = (*process)->WaitExit(kPatience);
  EXPECT_THAT(exit, IsOk());
  EXPECT_EQ(exit.ok() ? exit->code : -1, 1) << (*process)->Log();
  EXPECT_THAT(ProcessesNaming(run.run_dir()), IsEmpty());
  return (*process)->Log();
}

std::vector<std::string> Checkpoints(const RunHarness& run) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(run.Path("checkpoints"))) names.push_back(entry.path().filename());
  return names;
}

// The first step multiplies every weight by a number that is infinite in float32.
constexpr char kDiverge[] = "train.weight_decay=1e42";

TEST(DivergedTrainingTest, WeightsThatAreNotFiniteEndTheRunNamingTheTensorAndReachNobody) {
  RunHarness run({"run.steps=50", "eval.every_steps=0", "checkpoint.every_steps=1", kDiverge});
  const std::string printed = OutputOfFailed(run, run.Run());
  EXPECT_THAT(printed, AllOf(HasSubstr("the run failed"), HasSubstr("training has spoilt the weights of e1-s1"),
                             HasSubstr("is not finite"), HasSubstr("model.")));
  EXPECT_THAT(Checkpoints(run), IsEmpty());
  EXPECT_EQ(run.Summary()["status"], "failed");
  auto none = RunCommand("syncopate", {"events", run.run_dir(), "--kind", "foo"});
  ASSERT_THAT(none, IsOk());
  EXPECT_EQ(none->code, 1);
  EXPECT_THAT(none->output, AllOf(HasSubstr("an event of kind foo; there are: "), HasSubstr("publish")));
  auto events = RunCommand("syncopate", {"events", run.run_dir()});
  ASSERT_THAT(events, IsOk());
  for (const Json& event : JsonLines(events->output)) {
    if (event["kind"] == "publish" || event["kind"] == "install") {
      EXPECT_EQ(event["version"], "e1-s0") << event;
    }
  }
}

TEST(DivergedTrainingTest, TheRunOfATrainerOfSeveralRanksEndsWithTheTensorToo) {
  RunHarness run({"run.steps=50", "eval.every_steps=0", "checkpoint.every_steps=1", "trainer.world=2", kDiverge});
  const std::string printed = OutputOfFailed(run, run.Run());
  EXPECT_THAT(printed, AllOf(HasSubstr("training has spoilt the weights of e1-s1"), HasSubstr("is not finite"),
                             HasSubstr("model.")));
  EXPECT_THAT(run.Log("trainer-1"), HasSubstr("NON_FINITE"));
  EXPECT_THAT(Checkpoints(run), IsEmpty());
}

TEST(DivergedTrainingTest, NeitherDoThoseOfAStepThatIsNotPublishedReachACheckpoint) {
  RunHarness run({"run.steps=50", "eval.every_steps=0", "checkpoint.every_steps=1", "sync.every_steps=4", kDiverge});
  const std::string printed = OutputOfFailed(run, run.Run());
  EXPECT_THAT(printed, AllOf(HasSubstr("training has spoilt the weights of e1-s1"), HasSubstr("is not finite")));
  EXPECT_THAT(Checkpoints(run), IsEmpty());
}

// Makes the last number of the checkpoint's weights a NaN and adjusts the manifest, as a defective tool would.
void Spoil(const std::string& folder) {
  FileSystem* files = FileSystem::Real();
  constexpr int64_t kMostBytes = int64_t{1} << 30;
  std::string model = ReadFile(files, folder + "/model.safetensors", kMostBytes).value();
  const float nan = std::nanf("");
  std::memcpy(model.data() + model.size() - sizeof(nan), &nan, sizeof(nan));
  auto manifest = trainer::ParseCheckpointManifest(ReadFile(files, folder + "/manifest.json", kMostBytes).value());
  ASSERT_THAT(manifest, IsOk());
  manifest->files.at("model.safetensors").sha256 = Sha256Hex(model);
  ASSERT_THAT(WriteFileAtomically(files, folder + "/model.safetensors", model), IsOk());
  ASSERT_THAT(
      WriteFileAtomically(files, folder + "/manifest.json", trainer::FormatCheckpointManifest(*manifest).value()),
      IsOk());
}

TEST(SpoiltCheckpointTest, ItsWeightsAreRefusedNamingTheTensorBeforeAnybodyGetsThem) {
  RunHarness run({"run.steps=4", "eval.every_steps=0", "checkpoint.every_steps=2"});
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  auto exit = (*process)->WaitExit(kPatience);
  ASSERT_THAT(exit, IsOk());
  ASSERT_EQ(exit->code, 0) << (*process)->Log();
  ASSERT_NO_FATAL_FAILURE(Spoil(run.Path("checkpoints/e1-s4")));

  const std::string printed = OutputOfFailed(run, run.Resume({"run.steps=8"}));
  EXPECT_THAT(printed, AllOf(HasSubstr("checkpoint e1-s4"), HasSubstr("model.safetensors"), HasSubstr("is not finite"),
                             HasSubstr("remove it")));
  EXPECT_EQ(run.LastStep(), 4);
  // The error says what to do: without the bad checkpoint the older one is used, and the log brings back the rest.
  fs::remove_all(run.Path("checkpoints/e1-s4"));
  auto resumed = run.Resume({"run.steps=8"});
  ASSERT_THAT(resumed, IsOk());
  exit = (*resumed)->WaitExit(kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 0) << (*resumed)->Log();
  EXPECT_EQ(run.LastStep(), 8);
}

}  // namespace
}  // namespace syncopate::testing::non_finite_test
