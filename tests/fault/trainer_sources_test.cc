// Trainer ranks as the sources of weight syncs. Rank 1 is killed or stopped at each stage of a sync, refused by the
// synchronizer, or unreachable for the synchronizer or the rollouters; and a trainer resumes with another number of
// ranks.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "base/uuid.h"
#include "services/rpc/bidi_stream.h"
#include "services/rpc/channel.h"
#include "services/rpc/server.h"
#include "services/wire/codec.h"
#include "syncopate/v1/synchronizer.grpc.pb.h"
#include "tests/fault/fault_support.h"
#include "tests/support/run_harness.h"
#include "tests/support/status_matchers.h"
#include "tests/support/tcp_relay.h"
#include "trainer/checkpoint/checkpoint_store.h"

namespace syncopate::testing::trainer_sources_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using v1::SynchronizerService;

constexpr absl::Duration kGroupEndsWithin = absl::Seconds(10);
constexpr int kFailed = 1, kFenced = 3, kLostPeer = 4;

std::vector<std::string> Concat(std::vector<std::string> some, const std::vector<std::string>& more) {
  some.insert(some.end(), more.begin(), more.end());
  return some;
}

// The ranks of a trainer, started by hand.
class RanksByHand {
 public:
  explicit RanksByHand(RunHarness* run) : run_(run), rank0_(absl::StrCat("127.0.0.1:", FreePort().value())) {}

  // `of_rank1` are further overrides for rank 1 alone, `more` for all ranks.
  absl::Status Launch(int world, const std::vector<std::string>& more = {},
                      const std::vector<std::string>& of_rank1 = {}) {
    processes_.clear();
    for (int rank = 0; rank < world; ++rank) {
      std::vector<std::string> words = {absl::StrCat("trainer.world=", world), absl::StrCat("trainer.rank=", rank)};
      words.push_back(rank == 0 ? "trainer.listen=" + rank0_ : "trainer.rank0=" + rank0_);
      words = Concat(std::move(words), more);
      if (rank == 1) words = Concat(std::move(words), of_rank1);
      SYNCOPATE_ASSIGN_OR_RETURN(processes_.emplace_back(), run_->LaunchDaemon("trainer", rank, words));
    }
    return absl::OkStatus();
  }
  absl::Status Start(int world, const std::vector<std::string>& more = {},
                     const std::vector<std::string>& of_rank1 = {}) {
    SYNCOPATE_RETURN_IF_ERROR(Launch(world, more, of_rank1));
    const bool is_ready = Eventually(kPatience, [&] {
      const auto endpoint = run_->Endpoint("trainer", 0, 0, absl::ZeroDuration());
      return !processes_[0]->Running() || (endpoint.ok() && endpoint->pid == processes_[0]->pid());
    });
    if (is_ready && processes_[0]->Running()) return absl::OkStatus();
    return absl::FailedPreconditionError(processes_[0]->Log());
  }
  Process& rank(int number) { return *processes_[static_cast<size_t>(number)]; }

  // Expects that all ranks end with this code and report this reason.
  void ExpectEnd(int code, const std::string& reason) {
    const Stopwatch since;
    for (size_t number = 0; number < processes_.size(); ++number) {
      auto exit = processes_[number]->WaitExit(kPatience);
      ASSERT_THAT(exit, IsOk());
      EXPECT_EQ(*exit, (ExitStatus{code, 0})) << number << "\n" << processes_[number]->Log();
      EXPECT_THAT(processes_[number]->Log(), HasSubstr(reason)) << number;
    }
    EXPECT_LT(since.Elapsed(), kGroupEndsWithin);
  }

 private:
  RunHarness* const run_;
  const std::string rank0_;
  std::vector<std::unique_ptr<Process>> processes_;
};

// A run with a synchronizer and rollouters; trainers come later.
class TrainerSources : public ::testing::Test {
 protected:
  explicit TrainerSources(const std::vector<std::string>& overrides, int rollouters = 1)
      : run_(EndlessRun(Concat({"data.batch_groups=2", "rollout.samples=2", "checkpoint.every_steps=20"}, overrides))) {
    synchronizer_ = run_.StartDaemon("synchronizer").value();
    for (int64_t index = 0; index < rollouters; ++index) {
      rollouters_.push_back(run_.LaunchDaemon("rollouter", index).value());
    }
  }

  PolicyVersion Newest() const {
    const auto status = watch_.Synchronizer();
    return status.ok() ? wire::FromProto(status->newest()) : PolicyVersion{};
  }
  PolicyVersion Served(int64_t rollouter) const {
    const auto member = watch_.Member(rollouter);
    return member.ok() ? wire::FromProto(member->serving()) : PolicyVersion{};
  }
  std::vector<v1::SyncRecord> Syncs(int64_t epoch) const {
    auto stub = SynchronizerService::NewStub(rpc::MakeChannel(run_.Endpoint("synchronizer")->grpc).value());
    v1::WatchSyncsRequest request;
    request.set_last(1000);
    grpc::ClientContext context;
    context.set_deadline(rpc::CallDeadline(kPatience));
    auto reader = stub->WatchSyncs(&context, request);
    std::vector<v1::SyncRecord> records;
    v1::WatchSyncsResponse response;
    while (reader->Read(&response)) {
      if (response.record().version().epoch() == epoch) records.push_back(response.record());
    }
    EXPECT_TRUE(reader->Finish().ok());
    return records;
  }
  void StopInOrder() {
    ASSERT_THAT(watch_.Stop(), IsOk());
    ranks_.ExpectEnd(0, "trainer rank");
  }

  RunHarness run_;
  RunWatch watch_{&run_};
  std::unique_ptr<Process> synchronizer_;
  std::vector<std::unique_ptr<Process>> rollouters_;
  RanksByHand ranks_{&run_};
};

// The stage of a weight sync at which a fault hits trainer rank 1.
enum class Stage {
  kStaged,    // all ranks have staged the version, and the synchronizer does not know of it
  kPrepare,   // Prepare was sent to the sources or they have agreed; a receiver has not agreed
  kTransfer,  // a receiver has a part of rank 1's bytes
  kVerified,  // receivers have all bytes and have no Install command yet
};
constexpr Stage kStages[] = {Stage::kStaged, Stage::kPrepare, Stage::kTransfer, Stage::kVerified};

// The weights take several messages; those of rank 1 pass through a relay.
class LostSourceTest : public TrainerSources, public ::testing::WithParamInterface<int> {
 protected:
  static constexpr int64_t kMiddle = 256 << 10;  // of the 2 MB that rank 1 sends
  static constexpr int64_t kSlow = 1;            // the rollouter that does not answer Prepare

  LostSourceTest()
      : TrainerSources({"model.hidden_size=128", "model.intermediate_size=512", "model.num_hidden_layers=4",
                        "sync.prepare_deadline=4s"},
                       /*rollouters=*/2) {}

  std::vector<std::string> OfRank1() const {
    return {absl::StrCat("trainer.listen=127.0.0.1:", port_),
            absl::StrCat("trainer.advertise=127.0.0.1:", relay_.port())};
  }

  // Stops a sync at this stage.
  void HoldAt(Stage stage) {
    switch (stage) {
      case Stage::kStaged: {
        synchronizer_->Stop();
        // A version is staged before the next step is over.
        const int64_t step = watch_.Step();
        ASSERT_GE(step, 0);
        ASSERT_TRUE(Eventually(kPatience, [&] { return watch_.Step() >= step + 2; }));
        return;
      }
      case Stage::kPrepare: {
        ASSERT_TRUE(Eventually(kPatience, [&] {
          rollouters_[kSlow]->Stop();
          const auto member = watch_.Member(kSlow);
          if (member.ok() && member->attempt() == 0) return true;
          rollouters_[kSlow]->Continue();  // the rollouter was receiving
          return false;
        }));
        ASSERT_TRUE(Eventually(kPatience, [&] {
          const auto member = watch_.Member(kSlow);
          return member.ok() && member->attempt() != 0;
        }));
        return;
      }
      case Stage::kTransfer:
      case Stage::kVerified:
        relay_.HoldAll(kMiddle);
        ASSERT_TRUE(Eventually(kPatience, [&] { return relay_.held() > 0; }));
        if (stage == Stage::kTransfer) return;
        synchronizer_->Stop();
        relay_.Release();
        ASSERT_TRUE(Eventually(kPatience, [&] { return relay_.held() == 0 && relay_.downloads() == 0; }));
        return;
    }
  }
  void LetGo() {
    relay_.Release();
    synchronizer_->Continue();
    rollouters_[kSlow]->Continue();
  }

  const int port_ = FreePort().value();
  TcpRelay relay_{port_};
};

TEST_P(LostSourceTest, AtEachStageOfASyncEndsTheGroupAndRolloutersServeWholeVersionsAndGoOn) {
  ASSERT_THAT(ranks_.Start(2, {}, OfRank1()), IsOk());
  for (int64_t index : {0, 1}) ASSERT_THAT(watch_.AwaitWork(index), IsOk());
  for (const Stage stage : kStages) {
    SCOPED_TRACE(static_cast<int>(stage));
    ASSERT_NO_FATAL_FAILURE(HoldAt(stage));
    Process& victim = ranks_.rank(1);
    ASSERT_EQ(kill(victim.pid(), GetParam()), 0);
    const Stopwatch since;
    LetGo();
    auto exit = ranks_.rank(0).WaitExit(kPatience);
    ASSERT_THAT(exit, IsOk());
    EXPECT_EQ(*exit, (ExitStatus{kLostPeer, 0})) << ranks_.rank(0).Log();
    EXPECT_LT(since.Elapsed(), kGroupEndsWithin);
    EXPECT_THAT(ranks_.rank(0).Log(), AllOf(HasSubstr("RANK_LOST"), HasSubstr("trainer rank 1")));
    victim.Continue();
    exit = victim.WaitExit(kPatience);
    ASSERT_THAT(exit, IsOk());
    EXPECT_EQ(exit->signal, GetParam() == SIGKILL ? SIGKILL : 0) << victim.Log();
    if (GetParam() == SIGSTOP) {
      EXPECT_EQ(exit->code, kLostPeer) << victim.Log();
    }
    for (const auto& rollouter : rollouters_) EXPECT_TRUE(rollouter->Running()) << rollouter->Log();

    ASSERT_THAT(ranks_.Start(2, {"run.resume=true"}, OfRank1()), IsOk());
    ASSERT_THAT(watch_.AwaitMoreSteps(3), IsOk());
    for (int64_t index : {0, 1}) {
      EXPECT_TRUE(Eventually(kPatience, [&] { return Served(index).epoch == Newest().epoch; })) << index;
    }
  }
  ASSERT_NO_FATAL_FAILURE(StopInOrder());
  RunRules rules = RulesOfEndlessRun();
  rules.batch_groups = rules.samples = 2;
  EXPECT_THAT(Judge(run_, rules), IsClean());
}
INSTANTIATE_TEST_SUITE_P(Rank1, LostSourceTest, ::testing::Values(SIGKILL, SIGSTOP),
                         [](const auto& info) { return info.param == SIGKILL ? "Killed" : "Stopped"; });

class RefusedSourceTest : public TrainerSources {
 protected:
  RefusedSourceTest() : TrainerSources({}) {}
};

TEST_F(RefusedSourceTest, ARankThatIsEvictedEndsTheGroupWithThat) {
  ASSERT_THAT(ranks_.Start(2), IsOk());
  ASSERT_THAT(watch_.AwaitMoreSteps(3), IsOk());
  auto evicted = run_.Ctl({"evict", "trainer-0", "--rank", "1", "--reason", "a test"});
  ASSERT_THAT(evicted, IsOk());
  ASSERT_EQ(evicted->code, 0) << evicted->output;
  ASSERT_NO_FATAL_FAILURE(ranks_.ExpectEnd(kFailed, "EVICTED"));
  EXPECT_THAT(ranks_.rank(0).Log(), HasSubstr("trainer rank 1: "));
}

// Rank 0 still reaches rank 1: the trained steps are saved.
TEST_F(RefusedSourceTest, ARankThatLosesTheSynchronizerEndsTheGroupWithThatAndACheckpoint) {
  const auto endpoint = run_.Endpoint("synchronizer");
  ASSERT_THAT(endpoint, IsOk());
  auto relay = std::make_unique<TcpRelay>(ParseHostPort(endpoint->grpc)->port);
  ASSERT_THAT(
      ranks_.Start(2, {},
                   {absl::StrCat("synchronizer.address=127.0.0.1:", relay->port()), "synchronizer.lost_after=500ms"}),
      IsOk());
  ASSERT_THAT(watch_.AwaitMoreSteps(3), IsOk());
  relay.reset();
  ASSERT_NO_FATAL_FAILURE(ranks_.ExpectEnd(kLostPeer, "SYNCHRONIZER_LOST"));
  EXPECT_THAT(ranks_.rank(0).Log(), HasSubstr("trainer rank 1: "));
  auto store = trainer::CheckpointStore::Open(FileSystem::Real(), run_.Path("checkpoints"));
  ASSERT_THAT(store, IsOk());
  const auto latest = (*store)->LoadLatest();
  ASSERT_THAT(latest, IsOk());
  EXPECT_EQ(latest->checkpoint.version.step, run_.LastStep());
}

// A synchronizer that lets no member join.
class RefusingSynchronizer final : public SynchronizerService::CallbackService {
 public:
  grpc::ServerBidiReactor<v1::JoinRequest, v1::JoinResponse>* Join(grpc::CallbackServerContext* context) override {
    auto stream = rpc::ServerBidiStream<v1::JoinRequest, v1::JoinResponse>::Create(context);
    return stream->Start({.on_message = [stream](const v1::JoinRequest&) {
      stream->Finish(Error(absl::StatusCode::kFailedPrecondition, "FENCED", "another start came after this one"));
    }});
  }
};

TEST_F(RefusedSourceTest, ARankThatIsFencedBeforeTheRanksHaveMetEndsTheGroupWithThat) {
  RefusingSynchronizer refusing;
  auto server = rpc::Server::Start({}, {&refusing});
  ASSERT_THAT(server, IsOk());
  ASSERT_THAT(ranks_.Launch(3, {}, {absl::StrCat("synchronizer.address=", (*server)->address())}), IsOk());
  ASSERT_NO_FATAL_FAILURE(ranks_.ExpectEnd(kFenced, "FENCED"));
  EXPECT_THAT(ranks_.rank(0).Log(), HasSubstr("trainer rank 1: "));
}

class UnreachableSourceTest : public TrainerSources {
 protected:
  UnreachableSourceTest()
      : TrainerSources({"sync.prepare_deadline=100ms", "sync.deadline=500ms", "sync.give_up_after=500ms"}) {}
};

TEST_F(UnreachableSourceTest, ARankThatRolloutersDoNotReachIsNamedWithTheAddressThatItTold) {
  ASSERT_THAT(ranks_.Launch(2, {}, {"trainer.advertise=127.0.0.1:1"}), IsOk());
  ASSERT_NO_FATAL_FAILURE(ranks_.ExpectEnd(kLostPeer, "SYNC_FAILING"));
  EXPECT_THAT(ranks_.rank(0).Log(),
              AllOf(HasSubstr("trainer rank 1 does not answer at 127.0.0.1:1"), HasSubstr("trainer.advertise")));
}

class ResumedSourcesTest : public TrainerSources {
 protected:
  ResumedSourcesTest() : TrainerSources({}) {}

  // Makes some steps, and ends when the rollouter serves the last version.
  void WorkAndStop() {
    ASSERT_THAT(watch_.AwaitMoreSteps(4), IsOk());
    ASSERT_EQ(run_.Ctl({"pause", "trainer-0"})->code, 0);
    ASSERT_TRUE(Eventually(kPatience, [&] { return Served(0) == Newest() && watch_.Step() == Newest().step; }));
    ASSERT_NO_FATAL_FAILURE(StopInOrder());
    ASSERT_EQ(Served(0), Newest());
  }
  // Expects that the first version is relabelled if the ranks are as many as before, and else brought by all of them. A
  // later version is relabelled, too, if its step had no signal.
  static void ExpectFirstVersion(const std::vector<v1::SyncRecord>& syncs, int world) {
    for (const v1::SyncRecord& sync : syncs) {
      const bool is_first = sync.attempt() == syncs[0].attempt();
      if (is_first) {
        EXPECT_EQ(sync.result() == "relabelled", world == 2) << sync.DebugString();
      }
      if (sync.result() != "ok") continue;
      EXPECT_EQ(sync.bytes_by_source_size(), world);
      EXPECT_GT(sync.bytes(), 0);
    }
  }
  void ResumeWith(int world) {
    const PolicyVersion before = Newest();
    ASSERT_THAT(ranks_.Start(world, {"run.resume=true"}), IsOk());
    ASSERT_TRUE(Eventually(kPatience, [&] { return Served(0).epoch > before.epoch; }));
  }
};

// The digests of a version are those of its ranks' parts, so the same weights have other digests when other ranks send
// them.
TEST_F(ResumedSourcesTest, ATrainerOfAsManyRanksIsRelabelledAndOneOfOtherRanksSendsItsFirstVersion) {
  ASSERT_THAT(ranks_.Start(2), IsOk());
  ASSERT_NO_FATAL_FAILURE(WorkAndStop());
  for (const int world : {2, 3, 1}) {
    SCOPED_TRACE(world);
    ASSERT_NO_FATAL_FAILURE(ResumeWith(world));
    ASSERT_NO_FATAL_FAILURE(WorkAndStop());
    const std::vector<v1::SyncRecord> syncs = Syncs(Newest().epoch);
    ASSERT_FALSE(syncs.empty());
    ASSERT_NO_FATAL_FAILURE(ExpectFirstVersion(syncs, world));
  }
  RunRules rules = RulesOfEndlessRun();
  rules.batch_groups = rules.samples = 2;
  EXPECT_THAT(Judge(run_, rules), IsClean());
}

}  // namespace
}  // namespace syncopate::testing::trainer_sources_test
