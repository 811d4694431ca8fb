#include "services/trainer/trajectory_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/rpc/server.h"
#include "tests/component/trajectory/fake_rollouter.h"
#include "tests/support/hand_clock.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_authority.h"
#include "tests/unit/trainer/data/training_data_fixture.h"

namespace syncopate::trainerd {
namespace {

using ::syncopate::testing::GetIncarnation;
using ::syncopate::testing::HandClock;
using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;
using ::testing::Contains;
using trainer::RightAnswer;
using trainer::TrainingData;
using trainer::TrainingDataWorld;
using Response = v1::ExchangeResponse;

class TrajectoryServiceTest : public ::testing::Test {
 protected:
  void Start(const PolicyVersion& version = {1, 0}) {
    version_ = version;
    auto data = world_.Open(version);
    ASSERT_THAT(data, IsOk());
    data_ = *std::move(data);
    service_ = std::make_unique<TrajectoryServiceImpl>(data_.get(), rpc::StreamOptions{.silent_after = silent_after_},
                                                       security_);
    auto server = rpc::Server::Start({.security = security_}, {service_.get()});
    ASSERT_THAT(server, IsOk());
    server_ = *std::move(server);
  }
  ~TrajectoryServiceTest() override {
    if (data_ != nullptr) data_->Stop();
    if (server_ != nullptr) server_->Stop(absl::Seconds(2));
  }

  std::unique_ptr<FakeRollouter> Join(const std::string& replica, int32_t credits) {
    auto rollouter = std::make_unique<FakeRollouter>(server_->address());
    rollouter->Hello(TrainingDataWorld::Member(replica), TrainingDataWorld::kRunId);
    EXPECT_THAT(rollouter->WaitForWelcome(), IsOk());
    rollouter->Credits(credits, version_);
    return rollouter;
  }

  HandClock clock_;  // for tests that advance the time
  TrainingDataWorld world_;
  PolicyVersion version_;
  absl::Duration silent_after_ = absl::InfiniteDuration();
  std::shared_ptr<const auth::TransportSecurity> security_;  // null: no caller is authenticated
  std::unique_ptr<TrainingData> data_;
  trainer::TurnDesk desk_{{}, {.clock = Clock::Real()}};  // of no stream unless a test attaches it
  std::unique_ptr<TrajectoryServiceImpl> service_;
  std::unique_ptr<rpc::Server> server_;
};

TEST_F(TrajectoryServiceTest, LeasesForCreditsAndAcknowledgesWhatIsDurable) {
  Start({3, 0});
  auto rollouter = Join("r0", 2);
  EXPECT_EQ(*rollouter->WaitForWelcome(), 3);
  for (size_t i = 0; i < 2; ++i) {
    auto lease = rollouter->WaitForLease(i);
    ASSERT_THAT(lease, IsOk());
    EXPECT_EQ(lease->id.group.ordinal, static_cast<int64_t>(i));
    EXPECT_EQ(lease->prompt_ids, world_.prompts->At(lease->id.group).prompt_ids);
    rollouter->Submit(RightAnswer(*lease));
    auto ack = rollouter->WaitForAck(i);
    ASSERT_THAT(ack, IsOk());
    EXPECT_EQ(ack->result(), Response::ACK_RESULT_ACCEPTED);
    EXPECT_EQ(wire::FromProto(ack->lease()), lease->id);
  }
  EXPECT_EQ(rollouter->leases(), 2u) << "no credits, no leases";
  auto batch = NextBatch(*data_, absl::InfiniteFuture());
  ASSERT_THAT(batch, IsOk());
  EXPECT_EQ(batch->produces, (PolicyVersion{3, 1}));
  EXPECT_EQ(batch->groups.size(), 2u);
  EXPECT_EQ(batch->groups[0]->samples[1].reward, 1);
}

// One rank of a replica on a card of the trainer is enough.
TEST_F(TrajectoryServiceTest, TakesTurnsWithTheRolloutersOnItsOwnCardsAlone) {
  Start();
  service_->Attach(data_.get(), &desk_, {"card-1", "card-2"});
  FakeRollouter near(server_->address()), far(server_->address());
  near.cards = {"card-0", "card-2"};
  far.cards = {"card-0", "card-3"};
  near.Hello(TrainingDataWorld::Member("r0"), TrainingDataWorld::kRunId);
  far.Hello(TrainingDataWorld::Member("r1"), TrainingDataWorld::kRunId);
  auto turn = near.WaitForTurn(0);
  ASSERT_THAT(turn, IsOk());
  EXPECT_FALSE(turn->yield()) << "it is the rollouters'";
  ASSERT_THAT(far.WaitForWelcome(), IsOk());
  EXPECT_TRUE(near.takes_turns());
  EXPECT_FALSE(far.takes_turns());
  std::future<absl::Status> taken = std::async(std::launch::async, [this] { return desk_.Take([] { return false; }); });
  turn = near.WaitForTurn(1);
  ASSERT_THAT(turn, IsOk());
  EXPECT_TRUE(turn->yield());
  EXPECT_THAT(desk_.GetStatus().holders, ::testing::ElementsAre("r0"));
  v1::ExchangeRequest answer;
  answer.mutable_turn()->set_number(turn->number());
  answer.mutable_turn()->set_state(v1::ExchangeRequest::CardTurn::STATE_YIELDED);
  near.Send(answer);
  EXPECT_THAT(taken.get(), IsOk());
  EXPECT_THAT(desk_.GetStatus().holders, ::testing::IsEmpty());
}

TEST_F(TrajectoryServiceTest, SameSubmissionAgainIsAlreadyAccepted) {
  Start();
  auto rollouter = Join("r0", 1);
  auto lease = rollouter->WaitForLease(0);
  ASSERT_THAT(lease, IsOk());
  rollouter->Submit(RightAnswer(*lease));
  ASSERT_EQ(rollouter->WaitForAck(0)->result(), Response::ACK_RESULT_ACCEPTED);
  rollouter->Submit(RightAnswer(*lease));
  EXPECT_EQ(rollouter->WaitForAck(1)->result(), Response::ACK_RESULT_ALREADY_ACCEPTED);

  rollouter = Join("r0", 0);  // the rollouter cannot know whether its first submission was accepted
  rollouter->Submit(RightAnswer(*lease));
  EXPECT_EQ(rollouter->WaitForAck(0)->result(), Response::ACK_RESULT_ALREADY_ACCEPTED);
  EXPECT_EQ(data_->GetStatus().groups.duplicate, 2);
}

TEST_F(TrajectoryServiceTest, BrokenStreamHasItsLeasesIssuedAgainAtOnceAndItsLateAnswerRefused) {
  world_.options.ledger.max_groups = 2;  // so that the second rollouter keeps credits
  Start();
  auto first = Join("r0", 1);
  auto lease = first->WaitForLease(0);
  ASSERT_THAT(lease, IsOk());
  auto second = Join("r1", 2);
  ASSERT_THAT(second->WaitForLease(0), IsOk());

  absl::Time broken = Clock::Real()->Now();
  first->Break();
  auto again = second->WaitForLease(1);
  ASSERT_THAT(again, IsOk());
  EXPECT_LT(Clock::Real()->Now() - broken, absl::Seconds(1));
  EXPECT_EQ(again->id.group, lease->id.group);
  EXPECT_EQ(again->id.attempt, 2);
  EXPECT_EQ(again->seed, lease->seed);

  auto back = Join("r0", 0);
  back->Submit(RightAnswer(*lease));
  EXPECT_EQ(back->WaitForAck(0)->result(), Response::ACK_RESULT_LEASE_EXPIRED);
  second->Submit(RightAnswer(*again));
  EXPECT_EQ(second->WaitForAck(0)->result(), Response::ACK_RESULT_ACCEPTED);
}

TEST_F(TrajectoryServiceTest, SilentRollouterLosesItsLeasesAndItsStream) {
  world_.options.ledger.max_groups = 2;  // so that the second rollouter keeps credits
  silent_after_ = absl::Milliseconds(200);
  Start();
  auto silent = Join("r0", 1);
  const auto lost = silent->WaitForLease(0);
  ASSERT_THAT(lost, IsOk());
  const absl::Status end = silent->WaitForEnd();
  EXPECT_TRUE(absl::IsUnavailable(end)) << end;
  EXPECT_THAT(end, HasReason("SILENT")) << "the rollouter gets the reason";
  // The lease is taken a moment after the stream has ended, so another group may be leased before.
  auto other = Join("r1", 2);
  const auto first = other->WaitForLease(0), second = other->WaitForLease(1);
  ASSERT_THAT(first, IsOk());
  ASSERT_THAT(second, IsOk());
  EXPECT_THAT((std::vector<LeaseId>{first->id, second->id}), Contains(LeaseId{lost->id.group, 2}));
}

TEST_F(TrajectoryServiceTest, ALeaseOfWhichNoProgressIsReportedIsRevokedAndLeasedToAnother) {
  world_.clock = &clock_;
  world_.options.ledger.max_groups = 2;
  Start();
  auto silent = Join("r0", 1);
  auto stuck = silent->WaitForLease(0);
  ASSERT_THAT(stuck, IsOk());
  auto other = Join("r1", 1);
  auto lease = other->WaitForLease(0);
  ASSERT_THAT(lease, IsOk());
  std::unique_ptr<FakeRollouter> third = Join("r2", 1);  // the third rollouter has credits and no lease
  for (int i = 0; i < 10; ++i) {
    clock_.Advance(absl::Seconds(3));
    other->Progress({lease->id}, version_);
    other->Submit(RightAnswer(*stuck));  // the lease is not its own: the answer shows that the report was read
    ASSERT_EQ(other->WaitForAck(static_cast<size_t>(i))->result(), Response::ACK_RESULT_LEASE_EXPIRED);
  }
  auto revoked = silent->WaitForRevoke(0);
  ASSERT_THAT(revoked, IsOk());
  EXPECT_EQ(wire::FromProto(revoked->lease()), stuck->id);
  EXPECT_EQ(revoked->reason(), "LEASE_STALLED");
  auto again = third->WaitForLease(0);
  ASSERT_THAT(again, IsOk());
  EXPECT_EQ(again->id, (LeaseId{stuck->id.group, 2}));
  other->Submit(RightAnswer(*lease));
  EXPECT_EQ(other->WaitForAck(10)->result(), Response::ACK_RESULT_ACCEPTED);
}

TEST_F(TrajectoryServiceTest, InvalidGroupIsRefusedWithItsReasonAndLeasedAgain) {
  Start();
  auto rollouter = Join("r0", 1);
  auto lease = rollouter->WaitForLease(0);
  ASSERT_THAT(lease, IsOk());
  TrajectoryGroup bad = RightAnswer(*lease);
  bad.samples[1].logprobs[0] = std::numeric_limits<float>::quiet_NaN();
  rollouter->Submit(bad);
  auto ack = rollouter->WaitForAck(0);
  ASSERT_THAT(ack, IsOk());
  EXPECT_EQ(ack->result(), Response::ACK_RESULT_INVALID);
  EXPECT_THAT(rpc::FromProto(ack->error()), HasReason("BAD_LOGPROB"));
  rollouter->Credits(1, version_);
  auto again = rollouter->WaitForLease(1);
  EXPECT_EQ(again->id, (LeaseId{lease->id.group, 2}));
}

TEST_F(TrajectoryServiceTest, GroupThatCannotBeDecodedCostsTheGroupAndNotTheStream) {
  Start();
  auto rollouter = Join("r0", 1);
  auto lease = rollouter->WaitForLease(0);
  ASSERT_THAT(lease, IsOk());
  v1::ExchangeRequest request;
  *request.mutable_group() = wire::ToProto(RightAnswer(*lease));
  request.mutable_group()->mutable_samples(0)->set_finish(static_cast<v1::FinishReason>(77));
  rollouter->Send(request);
  auto ack = rollouter->WaitForAck(0);
  ASSERT_THAT(ack, IsOk());
  EXPECT_EQ(ack->result(), Response::ACK_RESULT_INVALID);
  EXPECT_THAT(rpc::FromProto(ack->error()), HasReason("BAD_MESSAGE"));
  rollouter->Credits(1, version_);
  EXPECT_EQ(rollouter->WaitForLease(1)->id.attempt, 2);
}

TEST_F(TrajectoryServiceTest, TokensOfAnOlderEpochAreFenced) {
  Start({2, 0});
  auto rollouter = Join("r0", 1);
  auto lease = rollouter->WaitForLease(0);
  ASSERT_THAT(lease, IsOk());
  rollouter->Submit(RightAnswer(*lease, {1, 0}));
  auto ack = rollouter->WaitForAck(0);
  ASSERT_THAT(ack, IsOk());
  EXPECT_EQ(ack->result(), Response::ACK_RESULT_INVALID);
  EXPECT_THAT(rpc::FromProto(ack->error()), HasReason("FENCED"));
}

TEST_F(TrajectoryServiceTest, NoLeaseForARollouterThatServesAnotherEpoch) {
  Start({2, 0});
  auto rollouter = Join("r0", 0);
  rollouter->Credits(4, {1, 0});
  auto current = Join("r1", 1);
  ASSERT_THAT(current->WaitForLease(0), IsOk());
  EXPECT_EQ(current->WaitForLease(0)->id.group.ordinal, 0);
  rollouter->Credits(4, {2, 0});
  EXPECT_EQ(rollouter->WaitForLease(0)->id.group.ordinal, 1);
}

TEST_F(TrajectoryServiceTest, RefusesStreamsOfAnotherRunAndThoseWithoutHello) {
  Start();
  FakeRollouter stranger(server_->address());
  stranger.Hello(TrainingDataWorld::Member("r0"), "run-2");
  EXPECT_THAT(stranger.WaitForEnd(), HasReason("RUN_MISMATCH"));

  FakeRollouter rude(server_->address());
  rude.Credits(1, version_);
  EXPECT_THAT(rude.WaitForEnd(), HasReason("HELLO_EXPECTED"));

  FakeRollouter nobody(server_->address());
  nobody.Hello({"rollouter", "", 0, 1, "i1"}, TrainingDataWorld::kRunId);
  EXPECT_THAT(nobody.WaitForEnd(), HasReason("BAD_MEMBER"));

  auto twice = Join("r0", 0);
  twice->Hello(TrainingDataWorld::Member("r0"), TrainingDataWorld::kRunId);
  EXPECT_THAT(twice->WaitForEnd(), HasReason("HELLO_EXPECTED"));
}

TEST_F(TrajectoryServiceTest, RefusesACallerThatIsNotTheRollouterThatItNames) {
  Start();
  auto real = Join("r0", 1);
  ASSERT_THAT(real->WaitForLease(0), IsOk());
  MemberId victim = TrainingDataWorld::Member("r0");
  victim.incarnation = GetIncarnation(victim.incarnation);
  for (const MemberSecret& secret : {MemberSecret(), MemberSecret::Draw(), MemberSecret(victim.incarnation)}) {
    FakeRollouter stranger(server_->address());
    stranger.Hello(victim, secret, TrainingDataWorld::kRunId);
    const absl::Status end = stranger.WaitForEnd();
    EXPECT_TRUE(absl::IsPermissionDenied(end));
    EXPECT_THAT(end, HasReason("WRONG_SECRET"));
  }
  for (const std::string& name : {std::string("a\nb"), std::string("../x"), std::string(60000, 'x')}) {
    FakeRollouter stranger(server_->address());
    stranger.Hello(TrainingDataWorld::Member(name), TrainingDataWorld::kRunId);
    EXPECT_THAT(stranger.WaitForEnd(), HasReason("BAD_MEMBER")) << name.substr(0, 10);
  }
  EXPECT_EQ(data_->GetStatus().rollouters.size(), 1u);
  real->Submit(RightAnswer(*real->WaitForLease(0)));
  EXPECT_EQ(real->WaitForAck(0)->result(), Response::ACK_RESULT_ACCEPTED)
      << "no other process has replaced the rollouter";
}

TEST_F(TrajectoryServiceTest, ACertificateTakesPromptsAsARollouterAloneAndSaysThatItIsOne) {
  const testing::TestAuthority authority;
  security_ = authority.SecurityFor("trainer");
  Start();
  for (auth::AuthRole role : auth::AllAuthRoles()) {
    const std::string caller = auth::AuthRoleName(role);
    for (const std::string said : {"rollouter", "trainer"}) {
      SCOPED_TRACE(absl::StrCat(caller, " says hello as ", said));
      FakeRollouter one(server_->address(), authority.SecurityFor(caller));
      MemberId member = TrainingDataWorld::Member(absl::StrCat(said, "-of-", caller));
      member.role = said;
      one.Hello(member, TrainingDataWorld::kRunId);
      if (caller == "rollouter" && said == caller) {
        EXPECT_THAT(one.WaitForWelcome(), IsOk());
        continue;
      }
      const absl::Status end = one.WaitForEnd();
      EXPECT_TRUE(absl::IsPermissionDenied(end)) << end;
      EXPECT_THAT(end, HasReason("WRONG_ROLE"));
    }
  }
}

TEST_F(TrajectoryServiceTest, AGroupThatNamesAnotherRollouterIsRefusedAndItsPromptLeasedAgain) {
  Start();
  auto other = Join("r1", 0);
  auto rollouter = Join("r0", 1);
  auto lease = rollouter->WaitForLease(0);
  ASSERT_THAT(lease, IsOk());
  TrajectoryGroup group = RightAnswer(*lease);
  group.incarnation = GetIncarnation(TrainingDataWorld::Member("r0").incarnation);
  group.rollouter = "r1";
  rollouter->SubmitAsItIs(group);
  auto ack = rollouter->WaitForAck(0);
  ASSERT_THAT(ack, IsOk());
  EXPECT_EQ(ack->result(), Response::ACK_RESULT_INVALID);
  EXPECT_THAT(rpc::FromProto(ack->error()), HasReason("WRONG_ROLLOUTER"));
  group.rollouter = "r0";
  group.incarnation = GetIncarnation("another life");
  rollouter->SubmitAsItIs(group);
  EXPECT_THAT(rpc::FromProto(rollouter->WaitForAck(1)->error()), HasReason("WRONG_ROLLOUTER"));
  rollouter->Credits(1, version_);
  auto again = rollouter->WaitForLease(1);
  ASSERT_THAT(again, IsOk());
  EXPECT_EQ(again->id, (LeaseId{lease->id.group, 2}));
  rollouter->Submit(RightAnswer(*again));
  EXPECT_EQ(rollouter->WaitForAck(2)->result(), Response::ACK_RESULT_ACCEPTED);
}

TEST_F(TrajectoryServiceTest, NewStreamOfAReplicaClosesTheOldOne) {
  Start();
  auto old = Join("r0", 1);
  ASSERT_THAT(old->WaitForLease(0), IsOk());
  auto fresh = Join("r0", 1);
  EXPECT_THAT(old->WaitForEnd(), HasReason("STREAM_REPLACED"));
  EXPECT_EQ(fresh->WaitForLease(0)->id.attempt, 2);
}

TEST_F(TrajectoryServiceTest, ReturnedLeaseGoesToAnother) {
  Start();
  auto draining = Join("r0", 1);
  auto lease = draining->WaitForLease(0);
  ASSERT_THAT(lease, IsOk());
  draining->Return(lease->id, absl::CancelledError("drained"));
  draining->Credits(0, version_);
  auto other = Join("r1", 1);
  EXPECT_EQ(other->WaitForLease(0)->id, (LeaseId{lease->id.group, 2}));
  EXPECT_EQ(data_->GetStatus().groups.failed_attempts, 0);
}

TEST_F(TrajectoryServiceTest, FullDiskRefusesTheGroupAndTakesItWhenThereIsRoom) {
  world_.clock = &clock_;
  Start();
  auto rollouter = Join("r0", 1);
  auto lease = rollouter->WaitForLease(0);
  ASSERT_THAT(lease, IsOk());
  world_.disk.SetCapacity(0);
  rollouter->Submit(RightAnswer(*lease));
  auto refused = rollouter->WaitForAck(0);
  ASSERT_THAT(refused, IsOk());
  EXPECT_EQ(refused->result(), Response::ACK_RESULT_INVALID);
  world_.disk.SetCapacity(1 << 30);
  clock_.Advance(absl::Seconds(1));
  rollouter->Credits(1, version_);
  auto again = rollouter->WaitForLease(1);
  ASSERT_THAT(again, IsOk());
  rollouter->Submit(RightAnswer(*again));
  EXPECT_EQ(rollouter->WaitForAck(1)->result(), Response::ACK_RESULT_ACCEPTED);
}

TEST_F(TrajectoryServiceTest, EvaluatesOverTheWire) {
  Start();
  auto rollouter = Join("r0", 0);
  data_->StartEvaluation(version_);
  rollouter->Credits(3, version_);  // credits for 6 samples
  for (size_t i = 0; i < 6; ++i) {
    auto lease = rollouter->WaitForLease(i);
    ASSERT_THAT(lease, IsOk());
    EXPECT_EQ(lease->kind, LeaseKind::kEvaluation);
    EXPECT_EQ(lease->sampling.temperature, 0);
    rollouter->Submit(RightAnswer(*lease));
    EXPECT_EQ(rollouter->WaitForAck(i)->result(), Response::ACK_RESULT_ACCEPTED);
  }
  auto result = data_->WaitForEvaluation(absl::InfiniteFuture());
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->prompts, 6);
  EXPECT_EQ(result->exact, 1.0);
  EXPECT_EQ(result->samples.size(), 2u);
}

}  // namespace
}  // namespace syncopate::trainerd
