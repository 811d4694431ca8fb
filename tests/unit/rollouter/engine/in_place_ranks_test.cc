// A replica of two ranks with one weight set each: rank 0's engine and target, rank 1's runner and target, with
// function calls in place of the streams between them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <future>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "ranks/collective.h"
#include "ranks/thread_ranks.h"
#include "rollouter/engine/engine_backend.h"
#include "rollouter/engine/engine_commands.h"
#include "rollouter/engine/engine_loop.h"
#include "rollouter/engine/follower_target.h"
#include "rollouter/engine/joint_install.h"
#include "rollouter/engine/leading_target.h"
#include "rollouter/engine/rank_slice.h"
#include "tests/support/eventually.h"
#include "tests/support/notification.h"
#include "tests/support/small_model.h"
#include "tests/support/status_matchers.h"

namespace syncopate::rollouter {
namespace {

using testing::HasReason;
using testing::IsOk;

const PolicyVersion kVersion1{1, 1}, kVersion2{1, 2}, kVersion3{1, 3};

// Does the work of ReplicaLeader and a follower, without their streams.
class TwoRanks final : public EngineFollowers, public InstallRanks {
 public:
  TwoRanks(std::shared_ptr<EngineBackend> backend, FollowerTarget* target)
      : engine_(std::move(backend)), target_(target), thread_([this] { Obey(); }) {}
  ~TwoRanks() override {
    {
      MutexLock lock(&mutex_);
      stopped_ = true;
    }
    thread_.join();
  }

  absl::Status Send(const EngineCommand& command) override {
    MutexLock lock(&mutex_);
    commands_.push_back(command);
    ++sent_;
    return absl::OkStatus();
  }
  absl::Status AwaitObeyed(absl::Duration deadline) override {
    MutexLock lock(&mutex_);
    waits_ = true;
    auto is_done = [this] { return done_ == sent_ || lost_; };
    const bool done = mutex_.AwaitWithTimeout(Condition(&is_done), deadline);
    waits_ = false;
    if (!done || lost_) return RankLost("rank 1 does not obey");
    const bool no_room = std::exchange(no_room_, false);
    return no_room ? Error(absl::StatusCode::kResourceExhausted, "NO_ROOM", "rank 1 has none") : room_;
  }

  // Rank 1 releases nothing until GoOn().
  void Delay() {
    MutexLock lock(&mutex_);
    delayed_ = true;
  }
  // Rank 1 carries out nothing more.
  void Hold() {
    MutexLock lock(&mutex_);
    held_ = true;
  }
  void GoOn() {
    MutexLock lock(&mutex_);
    delayed_ = false;
  }
  bool waits() {
    MutexLock lock(&mutex_);
    return waits_;
  }
  // Rank 1's next answer is that it has no room.
  void ReportNoRoom() {
    MutexLock lock(&mutex_);
    no_room_ = true;
  }
  void Lose() {
    MutexLock lock(&mutex_);
    lost_ = true;
  }

  int32_t world() const override { return 2; }
  absl::Status Claim(const PolicyVersion& version, absl::Duration deadline) override {
    return Await(installs_, version, deadline, /*claim=*/true);
  }
  void EndClaim(const PolicyVersion& version, End end) override {
    {
      MutexLock lock(&mutex_);
      installs_.EndClaim(version);
    }
    if (end == End::kExchanged) return;
    target_->EndWithoutExchange(version, end == End::kRelabelled);
  }
  absl::Status AwaitStopAwaited(const PolicyVersion& version, absl::Duration deadline) override {
    return Await(stops_, version, deadline, /*claim=*/false);
  }
  void EndStopAwaited(const PolicyVersion& version) override {
    MutexLock lock(&mutex_);
    stops_.EndClaim(version);
  }
  void SendWeightsLost(const PolicyVersion&) override { target_->LoseWeights(); }
  void SetAbandonListener(AbandonListener listener) override {
    MutexLock lock(&listener_mutex_);
    listener_ = std::move(listener);
  }

  void Ready(const PolicyVersion& version) {
    MutexLock lock(&mutex_);
    installs_.Ready(1, version);
  }
  void Withdraw(const PolicyVersion& version) {
    bool released = false;
    {
      MutexLock lock(&mutex_);
      released = installs_.Withdraw(1, version);
    }
    if (released) target_->EndWithoutExchange(version, /*relabelled=*/false);
  }
  void AwaitStop(const PolicyVersion& version) {
    MutexLock lock(&mutex_);
    stops_.Ready(1, version);
  }
  void Abandon(const PolicyVersion& version, bool overwritten) {
    {
      MutexLock lock(&mutex_);
      stops_.Withdraw(1, version);
    }
    MutexLock lock(&listener_mutex_);
    if (listener_) listener_(1, version, overwritten);
  }

 private:
  absl::Status Await(JointInstall& joint, const PolicyVersion& version, absl::Duration deadline, bool claim) {
    MutexLock lock(&mutex_);
    auto ready = [&] { return joint.AllReady(version); };
    if (!mutex_.AwaitWithTimeout(Condition(&ready), deadline)) {
      return Error(absl::StatusCode::kDeadlineExceeded, "INSTALL_DEADLINE", "rank 1 is not ready");
    }
    if (claim) joint.Claim(version);
    return absl::OkStatus();
  }
  void Obey() {
    for (EngineCommand command; Take(command);) {
      if (command.kind == EngineCommand::Kind::kExchange) {
        ASSERT_THAT(target_->CheckReady(command.version), IsOk());
      }
      if (command.kind == EngineCommand::Kind::kReleaseWeights) {
        ASSERT_THAT(target_->BeginSleep(command.keep_live, kTestDeadline), IsOk());
      }
      const absl::Status obeyed = engine_.Obey(command);
      if (is_held()) return;  // its ranks end
      ASSERT_THAT(obeyed, IsOk());
      if (command.kind == EngineCommand::Kind::kExchange) target_->Exchanged(command.version);
      if (command.kind == EngineCommand::Kind::kBeginInPlace) target_->Stopped(command.version);
      if (command.kind == EngineCommand::Kind::kRestoreWeights && engine_.room().ok()) target_->EndSleep();
      MutexLock lock(&mutex_);
      ++done_;
      room_ = engine_.room();
    }
  }
  bool is_held() {
    MutexLock lock(&mutex_);
    return held_;
  }
  bool Take(EngineCommand& command) {
    MutexLock lock(&mutex_);
    auto due = [this] {
      const bool releases = !commands_.empty() && commands_.front().kind == EngineCommand::Kind::kReleaseWeights;
      return stopped_ || (!commands_.empty() && !held_ && !(delayed_ && releases));
    };
    mutex_.Await(Condition(&due));
    if (commands_.empty() || held_) return false;
    command = std::move(commands_.front());
    commands_.pop_front();
    return true;
  }

  FollowingEngine engine_;
  FollowerTarget* const target_;
  Mutex mutex_;
  std::deque<EngineCommand> commands_;
  JointInstall installs_{2}, stops_{2};
  int64_t sent_ = 0, done_ = 0;
  absl::Status room_;  // of rank 1
  bool delayed_ = false, held_ = false, waits_ = false, no_room_ = false, lost_ = false;
  bool stopped_ = false;
  Mutex listener_mutex_;
  AbandonListener listener_;
  std::thread thread_;
};

// Counts the tokens of one answer that does not end soon by itself.
class CountingSink final : public GenerationSink {
 public:
  bool OnToken(int32_t, int32_t, float, const PolicyVersion& version, const std::vector<TokenLogProb>&) override {
    MutexLock lock(&mutex_);
    ++tokens_[version];
    return true;
  }
  void OnFinished(int32_t, Trajectory) override {}
  int64_t tokens(const PolicyVersion& version) const {
    MutexLock lock(&mutex_);
    auto found = tokens_.find(version);
    return found == tokens_.end() ? 0 : found->second;
  }

 private:
  mutable Mutex mutex_;
  std::map<PolicyVersion, int64_t> tokens_;
};

class InPlaceRanksTest : public ::testing::Test {
 protected:
  InPlaceRanksTest() {
    for (int32_t rank = 0; rank < 2; ++rank) {
      backends_.push_back(*MakeHostRankBackend(slice_.config, slice_.manifest, /*weight_sets=*/1,
                                               ranks_[static_cast<size_t>(rank)].get()));
    }
    follower_ = std::make_unique<FollowerTarget>(
        backends_[1], FollowerTarget::Options{
                          .send_ready = [this](const PolicyVersion& version) { streams_->Ready(version); },
                          .send_withdrawn = [this](const PolicyVersion& version) { streams_->Withdraw(version); },
                          .send_stop_awaited = [this](const PolicyVersion& version) { streams_->AwaitStop(version); },
                          .send_abandoned = [this](const PolicyVersion& version,
                                                   bool overwritten) { streams_->Abandon(version, overwritten); },
                          .on_lost = [](const absl::Status& why) { ADD_FAILURE() << why; }});
    streams_ = std::make_unique<TwoRanks>(backends_[1], follower_.get());
    engine_ = *EngineLoop::Start({.model = config_, .backend = MakeLeadingBackend(backends_[0], streams_.get())});
    leader_ = MakeLeadingTarget(engine_.get(), streams_.get(), [this] { lost_ = true; });
  }
  ~InPlaceRanksTest() override {
    leader_.reset();
    engine_->Stop();
    streams_.reset();
  }

  synchronizer::WeightTarget& target(int32_t rank) {
    return rank == 0 ? *leader_ : static_cast<synchronizer::WeightTarget&>(*follower_);
  }
  // Runs `act` for each rank on a thread of its own, like the receivers of two processes.
  template <typename Act>
  void OnBothRanks(const Act& act) {
    auto other = std::async(std::launch::async, [&] { act(1); });
    act(0);
    other.get();
  }
  void Stop(const PolicyVersion& version) {
    OnBothRanks([&](int32_t rank) { EXPECT_THAT(target(rank).BeginInPlace(version, kTestDeadline), IsOk()) << rank; });
  }
  void Receive(int32_t rank, uint64_t seed) {
    std::vector<char> arena(static_cast<size_t>(whole_.arena_bytes()));
    model::InitialiseWeights(config_, whole_, seed, reinterpret_cast<float*>(arena.data()));
    CopyRankSlice(whole_, slice_, rank, arena.data(), target(rank).shadow());
  }
  void Install(const PolicyVersion& version) {
    OnBothRanks([&](int32_t rank) { EXPECT_THAT(target(rank).Install(version, 7, kTestDeadline), IsOk()) << rank; });
  }
  void Sync(const PolicyVersion& version) {
    Stop(version);
    for (int32_t rank = 0; rank < 2; ++rank) Receive(rank, static_cast<uint64_t>(version.step));
    Install(version);
  }
  GenerationRequest Request() const {
    GenerationRequest request;
    request.id = "request";
    request.prompt_ids = {1, 2, 3};
    request.sampling.max_new_tokens = static_cast<int32_t>(config_.max_position_embeddings) - 4;
    request.seeds = {5};
    return request;
  }
  // Returns whether tokens are generated with `version` from now on.
  bool Generates(const PolicyVersion& version) {
    auto sink = std::make_shared<CountingSink>();
    if (!engine_->Submit(Request(), sink).ok()) return false;
    return testing::Eventually(kTestDeadline, [&] { return sink->tokens(version) > 0; });
  }

  const model::ModelConfig config_ = [] {
    model::ModelConfig config = testing::GroupedQueryModel();
    config.max_position_embeddings = 1024;  // an answer lasts as long as a test needs it
    return config;
  }();
  const Manifest whole_ = *model::MakeManifest(config_, DType::kFloat32);
  const RankSlice slice_ = *MakeRankSlice(config_, whole_, 2);
  const std::vector<std::unique_ptr<Communicator>> ranks_ = MakeThreadRanks(2, kTestDeadline);
  std::vector<std::shared_ptr<EngineBackend>> backends_;
  std::unique_ptr<FollowerTarget> follower_;
  std::unique_ptr<TwoRanks> streams_;
  std::shared_ptr<EngineLoop> engine_;
  std::unique_ptr<synchronizer::WeightTarget> leader_;
  std::atomic<bool> lost_ = false;
};

TEST_F(InPlaceRanksTest, BothStopAtOnePlanReceiveAndGoOn) {
  EXPECT_EQ(backends_[1]->arenas().bytes(), slice_.manifest.arena_bytes()) << "one weight set";
  for (const PolicyVersion& version : {kVersion1, kVersion2, kVersion3}) {
    Sync(version);
    EXPECT_TRUE(Generates(version));
    EXPECT_EQ(follower_->serving().version, version);
  }
}

TEST_F(InPlaceRanksTest, NoPlanRunsWhileARankReceives) {
  Sync(kVersion1);
  ASSERT_TRUE(Generates(kVersion1));
  ASSERT_THAT(engine_->Submit(Request(), std::make_shared<CountingSink>()), IsOk());
  Stop(kVersion2);
  const int64_t tokens = engine_->GetStatus().generated_tokens;
  Receive(1, 2);
  EXPECT_THAT(engine_->Submit(Request(), std::make_shared<CountingSink>()), IsOk());
  Receive(0, 2);
  EXPECT_EQ(engine_->GetStatus().generated_tokens, tokens);
  Install(kVersion2);
  EXPECT_TRUE(Generates(kVersion2));
}

TEST_F(InPlaceRanksTest, GenerationGoesOnWhenAllHaveGivenUpBeforeTheFirstByte) {
  Sync(kVersion1);
  Stop(kVersion2);
  target(1).CancelInPlace();
  auto sink = std::make_shared<CountingSink>();
  ASSERT_THAT(engine_->Submit(Request(), sink), IsOk());
  engine_->Abort("none");  // returns when the engine's thread has completed another round
  EXPECT_EQ(sink->tokens(kVersion1), 0) << "rank 0 may still receive";
  target(0).CancelInPlace();
  EXPECT_TRUE(testing::Eventually(kTestDeadline, [&] { return sink->tokens(kVersion1) > 0; }));
  EXPECT_TRUE(leader_->HasWeights());
  Sync(kVersion3);
  EXPECT_TRUE(Generates(kVersion3));
}

// The parameter is (the rank that has overwritten weights, whether that rank gives up first).
class LostInPlaceTest : public InPlaceRanksTest, public ::testing::WithParamInterface<std::pair<int32_t, bool>> {};
INSTANTIATE_TEST_SUITE_P(Ranks, LostInPlaceTest,
                         ::testing::Values(std::pair(0, true), std::pair(0, false), std::pair(1, true),
                                           std::pair(1, false)));

TEST_P(LostInPlaceTest, OneRankThatHasOverwrittenLeavesTheReplicaWithoutAVersionUntilAGoodSync) {
  const auto [torn, first] = GetParam();
  Sync(kVersion1);
  Stop(kVersion2);
  Receive(torn, 2);
  if (!first) target(1 - torn).CancelInPlace();
  target(torn).Invalidate();
  if (first) target(1 - torn).CancelInPlace();
  EXPECT_TRUE(engine_->GetStatus().serving.IsNone());
  EXPECT_TRUE(follower_->serving().version.IsNone());
  EXPECT_FALSE(target(0).HasWeights());
  EXPECT_FALSE(target(1).HasWeights());
  EXPECT_EQ(lost_.load(), torn == 1) << "rank 0's receiver reports for itself";
  EXPECT_THAT(engine_->Submit(Request(), std::make_shared<CountingSink>()), HasReason("NO_WEIGHTS"));
  Sync(kVersion3);
  EXPECT_TRUE(target(0).HasWeights());
  EXPECT_TRUE(target(1).HasWeights());
  EXPECT_TRUE(Generates(kVersion3));
}

// An answer that goes on with the next version shows that its sequence was kept.
TEST_F(InPlaceRanksTest, AReplicaThatYieldsHasLeftOnAllRanksAndGoesOnWithTheSameAnswerAfterTheNextSync) {
  Sync(kVersion1);
  auto sink = std::make_shared<CountingSink>();
  ASSERT_THAT(engine_->Submit(Request(), sink), IsOk());
  ASSERT_TRUE(testing::Eventually(kTestDeadline, [&] { return sink->tokens(kVersion1) > 0; }));
  streams_->Delay();
  auto yielded = std::async(std::launch::async, [&] { return engine_->Yield(kTestDeadline).status(); });
  ASSERT_TRUE(testing::Eventually(kTestDeadline, [&] { return streams_->waits(); })) << "for rank 1";
  EXPECT_NE(yielded.wait_for(std::chrono::seconds(0)), std::future_status::ready);
  streams_->GoOn();
  ASSERT_THAT(yielded.get(), IsOk());
  for (const auto& backend : backends_) EXPECT_EQ(backend->arenas().bytes(), 0);
  for (int32_t rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(target(rank).BeginAttempt(), HasReason("HELD")) << rank;
    EXPECT_TRUE(target(rank).LastSleep().slept) << rank;
  }
  const int64_t tokens = sink->tokens(kVersion1);
  EXPECT_LT(tokens, Request().sampling.max_new_tokens);

  ASSERT_THAT(engine_->EndYield(), IsOk());
  for (const auto& backend : backends_) EXPECT_EQ(backend->arenas().bytes(), slice_.manifest.arena_bytes());
  for (int32_t rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(target(rank).BeginAttempt(), IsOk()) << rank;
    target(rank).EndAttempt();
  }
  Sync(kVersion2);
  EXPECT_TRUE(testing::Eventually(kTestDeadline, [&] {
    return sink->tokens(kVersion1) + sink->tokens(kVersion2) == Request().sampling.max_new_tokens;
  }));
  EXPECT_EQ(sink->tokens(kVersion1), tokens);
}

TEST_F(InPlaceRanksTest, AReplicaWithARankThatFindsNoRoomStaysAsleepOnAllRanksAndIsWokenLater) {
  Sync(kVersion1);
  auto sink = std::make_shared<CountingSink>();
  ASSERT_THAT(engine_->Submit(Request(), sink), IsOk());
  ASSERT_THAT(engine_->Yield(kTestDeadline).status(), IsOk());
  streams_->ReportNoRoom();
  EXPECT_THAT(engine_->EndYield(), HasReason("NO_ROOM"));
  for (const auto& backend : backends_) EXPECT_EQ(backend->arenas().bytes(), 0);
  for (int32_t rank = 0; rank < 2; ++rank) EXPECT_THAT(target(rank).BeginAttempt(), HasReason("HELD")) << rank;
  EXPECT_THAT(engine_->GetStatus().failure, IsOk());
  ASSERT_THAT(engine_->EndYield(), IsOk());
  Sync(kVersion2);
  EXPECT_TRUE(testing::Eventually(kTestDeadline, [&] { return sink->tokens(kVersion2) > 0; }));
}

TEST_F(InPlaceRanksTest, AReplicaWhoseRankIsLostWhileItYieldsEndsAndDoesNotSayThatItHasLeft) {
  Sync(kVersion1);
  streams_->Lose();
  EXPECT_THAT(engine_->Yield(kTestDeadline).status(), HasReason("RANK_LOST"));
  EXPECT_TRUE(testing::Eventually(kTestDeadline, [&] { return !engine_->GetStatus().failure.ok(); }));
  EXPECT_THAT(engine_->GetStatus().failure, HasReason("RANK_LOST"));
}

// The plan fails at its launch: the scheduler takes it for one that is under way.
TEST_F(InPlaceRanksTest, AReplicaThatLosesARankWhileItGeneratesEndsWithThatReasonAlsoIfItIsToldToYield) {
  Sync(kVersion1);
  auto sink = std::make_shared<CountingSink>();
  ASSERT_THAT(engine_->Submit(Request(), sink), IsOk());
  ASSERT_TRUE(testing::Eventually(kTestDeadline, [&] { return sink->tokens(kVersion1) > 0; }));
  streams_->Hold();
  auto yielded = std::async(std::launch::async, [&] { return engine_->Yield(kTestDeadline).status(); });
  // Its command is behind the plan by then.
  EXPECT_NE(yielded.wait_for(std::chrono::milliseconds(100)), std::future_status::ready);
  for (const auto& rank : ranks_) rank->Abort("rank 1 is lost");
  streams_->Lose();
  EXPECT_FALSE(yielded.get().ok());
  EXPECT_TRUE(testing::Eventually(kTestDeadline, [&] { return !engine_->GetStatus().failure.ok(); }));
  EXPECT_THAT(engine_->GetStatus().failure, HasReason("RANK_LOST"));
}

TEST_F(InPlaceRanksTest, ARankThatIsNotReadyKeepsGenerationGoing) {
  Sync(kVersion1);
  EXPECT_THAT(target(0).BeginInPlace(kVersion2, absl::Milliseconds(1)), HasReason("INSTALL_DEADLINE"));
  EXPECT_TRUE(Generates(kVersion1));
  // Rank 1 waits beyond its turn; events between two turns count.
  ASSERT_THAT(target(1).BeginAttempt(), IsOk());
  EXPECT_THAT(target(1).BeginInPlace(kVersion2, absl::Milliseconds(1)), HasReason("INSTALL_DEADLINE"));
  EXPECT_THAT(target(0).BeginInPlace(kVersion2, kTestDeadline), IsOk());
  EXPECT_THAT(target(1).BeginInPlace(kVersion2, kTestDeadline), IsOk());
  for (int32_t rank = 0; rank < 2; ++rank) Receive(rank, 2);
  Install(kVersion2);
  target(1).EndAttempt();
  EXPECT_TRUE(Generates(kVersion2));
}

TEST_F(InPlaceRanksTest, ARankWhoseAttemptEndsBeforeItsTurnGivesUp) {
  Sync(kVersion1);
  ASSERT_THAT(target(1).BeginAttempt(), IsOk());
  EXPECT_THAT(target(1).BeginInPlace(kVersion2, absl::Milliseconds(1)), HasReason("INSTALL_DEADLINE"));
  EXPECT_THAT(target(0).BeginInPlace(kVersion2, kTestDeadline), IsOk());
  target(1).EndAttempt();
  target(0).CancelInPlace();
  EXPECT_TRUE(Generates(kVersion1));
  EXPECT_EQ(follower_->serving().version, kVersion1);
}

}  // namespace
}  // namespace syncopate::rollouter
