// A trainer's policy and a rollouter's engine that take turns for a long time in one process, without gRPC.

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/worker.h"
#include "rollouter/engine/engine_loop.h"
#include "tests/support/small_model.h"
#include "tests/support/training_groups.h"
#include "trainer/staging/host_stager.h"
#include "trainer/step/policy_trainer.h"
#include "trainer/turns/turn_desk.h"

namespace syncopate {
namespace {

constexpr absl::Duration kDeadline = absl::Seconds(30);

int64_t ResidentBytes() {
  int64_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

ptrdiff_t CountDescriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
}

std::vector<TrajectoryGroup> Groups(uint64_t seed) {
  return testing::RandomGroups(testing::SmallModel().vocab_size, 2, 2, seed,
                               [](Trajectory& sample, const testing::Draw& draw) {
                                 sample.spans = {{{1, 0}, 0, static_cast<int32_t>(sample.tokens.size())}};
                                 sample.reward = 0.2f * static_cast<float>(draw(6));
                               });
}

// Calls `again` when its answer has ended: there is always one under way.
class EndlessSink final : public rollouter::GenerationSink {
 public:
  explicit EndlessSink(std::function<void()> again) : again_(std::move(again)) {}
  void OnFinished(int32_t, Trajectory trajectory) override {
    if (trajectory.finish != FinishReason::kAborted) again_();
  }

 private:
  const std::function<void()> again_;
};

class TurnsEnduranceTest : public ::testing::Test {
 protected:
  TurnsEnduranceTest() {
    at::set_num_threads(1);
    trainer::PolicyTrainer::Options options;
    options.model = model_;
    policy_ = trainer::PolicyTrainer::Create(options).value();
    const Manifest wire = model::MakeManifest(model_, DType::kFloat32).value();
    stager_ = trainer::HostStager::Create(policy_.get(), wire, /*slots=*/1).value();
    rollouter::EngineLoop::Options engine;
    engine.model = model_;
    engine.max_sequences = 8;
    engine.host_kv_bytes = 1 << 20;
    engine.backend = rollouter::MakeInPlaceHostBackend(model_, wire).value();
    engine_ = rollouter::EngineLoop::Start(engine).value();
    desk_.Connect("rollouter-0", "1", kStream, /*yielded=*/false, [this](bool yield, int64_t turn) {
      EXPECT_TRUE(worker_.Post([this, yield, turn] { Obey(yield, turn); }));
    });
  }
  ~TurnsEnduranceTest() override {
    worker_.Stop();
    engine_->Stop();
  }

  void Obey(bool yield, int64_t turn) {
    using State = trainer::TurnDesk::Report::State;
    if (yield) {
      EXPECT_TRUE(engine_->Yield(kDeadline).ok());
    } else {
      EXPECT_TRUE(engine_->EndYield().ok());
      EXPECT_TRUE(Receive(turn).ok());
    }
    desk_.Record("rollouter-0", kStream, {turn, yield ? State::kYielded : State::kBack, 0});
  }
  // Receives version `turn` in place.
  absl::Status Receive(int64_t turn) {
    if (turn == 0) return absl::OkStatus();  // it is connected, and nothing is published
    const PolicyVersion version{1, turn};
    SYNCOPATE_ASSIGN_OR_RETURN(const auto reader, stager_->store()->Open(version));
    SYNCOPATE_RETURN_IF_ERROR(engine_->BeginInPlace(version, kDeadline));
    SYNCOPATE_RETURN_IF_ERROR(reader->Read({0, engine_->manifest().arena_bytes()}, engine_->shadow()));
    return engine_->Install(version, /*digest=*/1, kDeadline).status();
  }
  void Ask() {
    rollouter::GenerationRequest request;
    request.id = absl::StrCat("r", ++asked_);
    request.prompt_ids = {8, 1, 2, 3, 4, 9};
    request.sampling.max_new_tokens = 5;
    request.seeds = {static_cast<uint64_t>(asked_)};
    // Refused when the engine stops.
    engine_->Submit(std::move(request), std::make_shared<EndlessSink>([this] { Ask(); })).IgnoreError();
  }
  void MakeTurn(int64_t turn) {
    ASSERT_TRUE(desk_.Take([] { return false; }).ok());
    const rollouter::EngineStatus away = engine_->GetStatus();
    EXPECT_EQ(away.weight_bytes + away.kv_bytes, 0);
    ASSERT_TRUE(policy_->EnterTrainerMode().ok());
    if (turn % 10 == 0) {
      const auto groups = Groups(static_cast<uint64_t>(turn));
      ASSERT_TRUE(policy_->Step(testing::Pointers(groups), turn).ok());
    }
    const auto staged = trainer::InUse(*policy_, [&] { return stager_->Launch({1, turn}); });
    ASSERT_TRUE(staged.ok()) << staged;
    ASSERT_TRUE(stager_->Await().ok());
    ASSERT_TRUE(policy_->EnterRolloutMode().ok());
    EXPECT_EQ(policy_->memory().parameter_bytes + policy_->memory().optimizer_bytes, 0);
    if (turn % 50 == 0) {
      ASSERT_TRUE(policy_->TakeSnapshot("").ok());
    }
    desk_.GiveBack();
  }

  static constexpr int64_t kStream = 1;
  const model::ModelConfig model_ = testing::SmallModel();
  std::unique_ptr<trainer::PolicyTrainer> policy_;
  std::unique_ptr<trainer::HostStager> stager_;
  std::unique_ptr<rollouter::EngineLoop> engine_;
  std::atomic<int64_t> asked_ = 0;
  trainer::TurnDesk desk_{{}, {.clock = Clock::Real()}};
  Worker worker_;
};

TEST_F(TurnsEnduranceTest, AThousandTurnsTakeNeitherMemoryNorDescriptors) {
  constexpr int64_t kWarm = 200, kTurns = 1000;
  ASSERT_TRUE(policy_->EnterRolloutMode().ok());
  int64_t resident = 0;
  ptrdiff_t descriptors = 0;
  for (int64_t turn = 1; turn <= kTurns; ++turn) {
    MakeTurn(turn);
    if (HasFatalFailure()) return;
    if (turn == 1) {
      for (int i = 0; i < 4; ++i) Ask();  // from here on answers are under way at every turn
    }
    if (turn != kWarm) continue;
    resident = ResidentBytes();
    descriptors = CountDescriptors();
  }
  ASSERT_TRUE(desk_.Take([] { return false; }).ok()) << "the last version was received";
  EXPECT_LE(ResidentBytes(), resident + (4 << 20)) << "from " << resident;
  EXPECT_LE(CountDescriptors(), descriptors);
  EXPECT_EQ(engine_->GetStatus().installs, kTurns);
  EXPECT_GT(engine_->GetStatus().yielded_sequences, kTurns);
  EXPECT_GT(engine_->GetStatus().requests.at_length + engine_->GetStatus().requests.stopped, 0);
}

}  // namespace
}  // namespace syncopate
