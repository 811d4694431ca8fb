#include "services/trainer/rank_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/reasons.h"
#include "services/rpc/channel.h"
#include "services/rpc/server.h"
#include "services/wire/codec.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_authority.h"

namespace syncopate::trainerd {
namespace {

using ::syncopate::testing::HasMessage;
using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(20);
const std::string kSecret(kGroupSecretBytes, 's');

// A rank that a test operates by hand: it sends what the test gives it, and keeps what it receives.
class FakeRank {
 public:
  explicit FakeRank(const std::string& address) {
    auto channel = rpc::MakeChannel(address).value();
    auto stub = v1::RankService::NewStub(channel);
    stream_->Start([&stub](auto* context, auto* reactor) { stub->async()->Attend(context, reactor); },
                   {.on_message =
                        [state = state_](v1::AttendResponse message) {
                          MutexLock lock(&state->mutex);
                          state->told.push_back(std::move(message));
                        },
                    .on_done =
                        [state = state_](const absl::Status& status) {
                          MutexLock lock(&state->mutex);
                          state->ended = status;
                        }});
  }
  ~FakeRank() { stream_->Cancel(); }

  void Hello(int32_t rank, const std::string& config = "config", const std::string& gpu = "",
             const std::string& secret = kSecret, const std::string& ranks_address = "127.0.0.1:5001") {
    v1::AttendRequest message;
    message.mutable_hello()->set_ranks_address(ranks_address);
    message.mutable_hello()->set_secret(secret);
    message.mutable_hello()->set_rank(rank);
    message.mutable_hello()->set_world(3);
    message.mutable_hello()->set_config_digest(config);
    message.mutable_hello()->set_manifest_fingerprint(7);
    message.mutable_hello()->set_build("0.1");
    message.mutable_hello()->set_gpu(gpu);
    message.mutable_hello()->set_card(absl::StrCat("card-", rank % 2));
    stream_->Write(std::move(message));
  }
  void Leave() { stream_->Cancel(); }
  void Saved(const std::string& folder, const std::string& file, int64_t bytes, const std::string& why_not = "") {
    v1::AttendRequest message;
    message.mutable_saved()->set_folder(folder);
    if (why_not.empty()) {
      v1::AttendRequest::Saved::File* const one = message.mutable_saved()->add_files();
      one->set_name(file);
      one->set_bytes(bytes);
      one->set_sha256("digest");
    } else {
      message.mutable_saved()->set_code(static_cast<int32_t>(absl::StatusCode::kResourceExhausted));
      message.mutable_saved()->set_reason(why_not);
      message.mutable_saved()->set_message("the disk is full");
    }
    stream_->Write(std::move(message));
  }

  void Staged(const PolicyVersion& version, const std::vector<uint64_t>& digests) {
    v1::AttendRequest message;
    *message.mutable_staged()->mutable_version() = wire::ToProto(version);
    message.mutable_staged()->mutable_bucket_digests()->Assign(digests.begin(), digests.end());
    stream_->Write(std::move(message));
  }
  void NotFinite(const PolicyVersion& version, const std::string& tensor) {
    v1::AttendRequest message;
    *message.mutable_staged()->mutable_version() = wire::ToProto(version);
    message.mutable_staged()->set_code(static_cast<int32_t>(absl::StatusCode::kDataLoss));
    message.mutable_staged()->set_reason(reason::kNonFinite);
    message.mutable_staged()->set_message(tensor + " is not finite");
    message.mutable_staged()->set_tensor(tensor);
    stream_->Write(std::move(message));
  }
  // The messages that the synchronizer sent to the rank.
  void Refused(int32_t code, const std::string& reason) {
    v1::AttendRequest message;
    message.mutable_refused()->set_code(code);
    message.mutable_refused()->set_reason(reason);
    message.mutable_refused()->set_message("no longer a member");
    stream_->Write(std::move(message));
  }

  v1::AttendResponse Next() {
    MutexLock lock(&state_->mutex);
    auto is_there = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mutex) { return !state_->told.empty(); };
    if (!state_->mutex.AwaitWithTimeout(Condition(&is_there), kPatience)) return {};
    v1::AttendResponse next = state_->told.front();
    state_->told.pop_front();
    return next;
  }
  absl::Status End() {
    MutexLock lock(&state_->mutex);
    auto is_over = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mutex) { return state_->ended.has_value(); };
    if (!state_->mutex.AwaitWithTimeout(Condition(&is_over), kPatience)) return absl::DeadlineExceededError("no end");
    return *state_->ended;
  }

 private:
  struct State {
    Mutex mutex;
    std::deque<v1::AttendResponse> told ABSL_GUARDED_BY(mutex);
    std::optional<absl::Status> ended ABSL_GUARDED_BY(mutex);
  };
  using Stream = rpc::ClientBidiStream<v1::AttendRequest, v1::AttendResponse>;

  const std::shared_ptr<State> state_ = std::make_shared<State>();  // shared with the callbacks of the stream
  const std::shared_ptr<Stream> stream_ = Stream::Create();
};

class RankServiceTest : public ::testing::Test {
 protected:
  void Start(absl::Duration silent_after = kPatience, const std::string& gpu = "") {
    service_ = std::make_unique<RankServiceImpl>(
        rpc::RankStreamsOptions{
            .rank0 = {.world = 3, .config_digest = "config", .manifest_fingerprint = 7, .build = "0.1", .gpu = gpu},
            .secret = kSecret,
            .security = security_,
            .on_lost =
                [this](const absl::Status& why) {
                  MutexLock lock(&mutex_);
                  lost_ = why;
                },
            .silent_after = silent_after},
        [this](const absl::Status& why) {
          MutexLock lock(&mutex_);
          refused_ = why;
        });
    server_ = rpc::Server::Start({}, {service_.get()}).value();
    for (auto* rank : {&first_, &second_}) *rank = std::make_unique<FakeRank>(server_->address());
  }
  void Assemble() {
    second_->Hello(2);
    first_->Hello(1);
    ASSERT_THAT(service_->AwaitRanks(kPatience, [] { return absl::OkStatus(); }), IsOk());
  }
  ~RankServiceTest() override {
    first_.reset();
    second_.reset();
    if (server_ != nullptr) server_->Stop(absl::Seconds(2));
  }
  absl::Status AwaitLost() {
    MutexLock lock(&mutex_);
    auto is_lost = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !lost_.ok(); };
    mutex_.AwaitWithTimeout(Condition(&is_lost), kPatience);
    return lost_;
  }

  absl::Status AwaitRefused() {
    MutexLock lock(&mutex_);
    auto is_refused = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !refused_.ok(); };
    mutex_.AwaitWithTimeout(Condition(&is_refused), kPatience);
    return refused_;
  }

  Mutex mutex_;
  absl::Status lost_ ABSL_GUARDED_BY(mutex_), refused_ ABSL_GUARDED_BY(mutex_);
  // The security of the service, as if its server had admitted the ranks.
  std::shared_ptr<const auth::TransportSecurity> security_;
  std::unique_ptr<RankServiceImpl> service_;
  std::unique_ptr<rpc::Server> server_;
  std::unique_ptr<FakeRank> first_, second_;
};

TEST_F(RankServiceTest, AllRanksAreToldTheSameInTheSameOrder) {
  Start();
  Assemble();
  v1::AttendResponse::Welcome welcome;
  welcome.set_run_id("run");
  welcome.set_epoch(4);
  ASSERT_THAT(service_->Welcome(welcome), IsOk());
  TrajectoryGroup group;
  group.prompt_ids = {5, 6};
  ASSERT_THAT(service_->Send({.kind = trainer::PolicyCommand::Kind::kStep, .step = 9}, {&group, &group}), IsOk());
  ASSERT_THAT(
      service_->Send(
          {.kind = trainer::PolicyCommand::Kind::kWriteTensor, .part = trainer::PolicyPart::kSecondMoment, .tensor = 3},
          {}),
      IsOk());
  ASSERT_THAT(service_->Send({.kind = trainer::PolicyCommand::Kind::kStage, .version = {4, 9}}, {}), IsOk());
  ASSERT_THAT(service_->Send({.kind = trainer::PolicyCommand::Kind::kExport, .folder = ".tmp-1"}, {}), IsOk());
  service_->Stop(absl::OkStatus(), /*completed=*/true);
  for (FakeRank* rank : {first_.get(), second_.get()}) {
    EXPECT_EQ(rank->Next().welcome().epoch(), 4);
    EXPECT_EQ(rank->Next().group().prompt_ids_size(), 2);
    EXPECT_TRUE(rank->Next().has_group());
    const v1::AttendResponse step = rank->Next();
    EXPECT_EQ(step.step().step(), 9);
    EXPECT_EQ(step.step().groups(), 2);
    const v1::AttendResponse write = rank->Next();
    EXPECT_EQ(write.write_tensor().part(), 2);
    EXPECT_EQ(write.write_tensor().tensor(), 3);
    EXPECT_EQ(rank->Next().stage().version().step(), 9);
    EXPECT_EQ(rank->Next().export_weights().folder(), ".tmp-1");
    EXPECT_TRUE(rank->Next().stop().completed());
    EXPECT_THAT(rank->End(), IsOk());
  }
  EXPECT_THAT(service_->lost(), IsOk());
}

TEST_F(RankServiceTest, ARankThatDisagreesIsTheEndOfTheGroupAndIsToldWhy) {
  Start();
  first_->Hello(1);
  second_->Hello(2, "another");
  const absl::Status status = service_->AwaitRanks(kPatience, [] { return absl::OkStatus(); });
  EXPECT_THAT(status, HasReason("RANK_MISMATCH"));
  EXPECT_THAT(status.message(), HasSubstr("trainer rank 2 has another configuration"));
  EXPECT_THAT(second_->End(), HasReason("RANK_MISMATCH"));
  EXPECT_THAT(AwaitLost(), HasReason("RANK_MISMATCH"));
}

TEST_F(RankServiceTest, TheAddressesThatRanksToldAreInTheirOrderAndWildcardsAreWhereTheyCallFrom) {
  Start();
  second_->Hello(2, "config", "", kSecret, "0.0.0.0:5002");
  first_->Hello(1);
  ASSERT_THAT(service_->AwaitRanks(kPatience, [] { return absl::OkStatus(); }), IsOk());
  EXPECT_EQ(service_->ranks_addresses(), (std::vector<std::string>{"127.0.0.1:5001", "127.0.0.1:5002"}));
}

TEST_F(RankServiceTest, TheCardsOfTheOtherRanksAreKnown) {
  Start();
  first_->Hello(1);
  second_->Hello(2);
  ASSERT_THAT(service_->AwaitRanks(kPatience, [] { return absl::OkStatus(); }), IsOk());
  EXPECT_EQ(service_->cards(), (std::set<std::string>{"card-0", "card-1"}));
}

TEST_F(RankServiceTest, ARankThatTellsNoAddressThatOthersReachEndsTheGroupAndIsToldTheRemedy) {
  Start();
  first_->Hello(1, "config", "", kSecret, "somewhere");
  EXPECT_THAT(first_->End(), AllOf(HasReason("BAD_ADDRESS"), HasMessage(HasSubstr("trainer.ranks_listen"))));
  EXPECT_THAT(AwaitLost(), HasReason("BAD_ADDRESS"));
}

TEST(FindRanksAddressTest, ALoopbackAddressIsRefusedFromAnotherHostAndAWildcardIsTheHostThatCalls) {
  rpc::RankWords words;
  words.rank = "trainer rank";
  words.listen_key = "trainer.ranks_listen";
  auto find = [&](const char* told, const char* host) { return rpc::FindRanksAddress(words, 2, told, host); };
  // A loopback address is valid if both ends are on one host, by any loopback address, or if the host is unknown.
  EXPECT_EQ(find("127.0.0.1:5", "127.0.0.1").value_or("refused"), "127.0.0.1:5");
  EXPECT_EQ(find("127.0.0.1:5", "::1").value_or("refused"), "127.0.0.1:5");
  EXPECT_EQ(find("127.0.0.1:5", "").value_or("refused"), "127.0.0.1:5");
  EXPECT_EQ(find("0.0.0.0:5", "10.0.0.7").value_or("refused"), "10.0.0.7:5");
  EXPECT_EQ(find("[::]:5", "10.0.0.7").value_or("refused"), "10.0.0.7:5");
  EXPECT_EQ(find("trainer-2.pods:5", "10.0.0.7").value_or("refused"), "trainer-2.pods:5");
  EXPECT_EQ(find("", "10.0.0.7").value_or("refused"), "");
  for (const char* told : {"127.0.0.1:5", "localhost:5", "[::1]:5", "127.8.8.8:5"}) {
    for (const char* host : {"10.0.0.7", "fd00::2"}) {
      const absl::Status why = find(told, host).status();
      EXPECT_THAT(why, AllOf(HasReason("BAD_ADDRESS"), HasMessage(HasSubstr("trainer.ranks_listen")))) << told << host;
      EXPECT_THAT(why.message(), AllOf(HasSubstr("trainer rank 2"), HasSubstr(told), HasSubstr(host)));
    }
  }
  EXPECT_THAT(find("somewhere", "10.0.0.7").status(), HasReason("BAD_ADDRESS"));
}

TEST(GetPeerHostTest, IsTheAddressWithoutPortAndBrackets) {
  EXPECT_EQ(rpc::GetPeerHost("ipv4:10.0.0.7:41234"), "10.0.0.7");
  EXPECT_EQ(rpc::GetPeerHost("ipv6:%5B::1%5D:41234"), "::1");
  EXPECT_EQ(rpc::GetPeerHost("ipv6:[fd00::2]:1"), "fd00::2");
  EXPECT_EQ(rpc::GetPeerHost("unix:/run/socket"), "");
}

TEST_F(RankServiceTest, TwoRanksOnOneGpuAreNamedBoth) {
  Start(kPatience, "GPU-a");
  first_->Hello(1, "config", "GPU-b");
  second_->Hello(2, "config", "GPU-b");
  const absl::Status status = service_->AwaitRanks(kPatience, [] { return absl::OkStatus(); });
  EXPECT_THAT(status, HasReason("RANK_MISMATCH"));
  EXPECT_THAT(status.message(), HasSubstr("both compute on GPU-b"));
  EXPECT_THAT(status.message(), ::testing::AnyOf(HasSubstr("ranks 1 and 2"), HasSubstr("ranks 2 and 1")));
}

TEST_F(RankServiceTest, ARankOnTheGpuOfRank0IsRefused) {
  Start(kPatience, "GPU-a");
  first_->Hello(1, "config", "GPU-a");
  EXPECT_THAT(first_->End().message(), HasSubstr("trainer ranks 0 and 1 both compute on GPU-a"));
  EXPECT_THAT(AwaitLost(), HasReason("RANK_MISMATCH"));
}

TEST_F(RankServiceTest, ARankOnTheCpuDoesNotFitToOneOnAGpu) {
  Start(kPatience, "GPU-a");
  first_->Hello(1);
  EXPECT_THAT(first_->End().message(), HasSubstr("another kind of device"));
}

TEST_F(RankServiceTest, WhatAllRanksHaveSavedIsGatheredByFolder) {
  Start();
  Assemble();
  ASSERT_THAT(service_->Send({.kind = trainer::PolicyCommand::Kind::kSave, .folder = ".tmp-1"}, {}), IsOk());
  EXPECT_EQ(first_->Next().save().folder(), ".tmp-1");
  first_->Saved(".tmp-1", "model-1-of-3.safetensors", 10);
  second_->Saved(".tmp-1", "model-2-of-3.safetensors", 20);
  const auto saved = service_->AwaitSaved(".tmp-1");
  ASSERT_THAT(saved, IsOk());
  EXPECT_EQ(*saved, (trainer::CheckpointStore::Files{{"model-1-of-3.safetensors", {10, "digest"}},
                                                     {"model-2-of-3.safetensors", {20, "digest"}}}));
}

TEST_F(RankServiceTest, ARankThatCouldNotSaveIsNamedOnceAllHaveSaidWhatTheyDid) {
  Start();
  Assemble();
  second_->Saved(".tmp-1", "", 0, "NO_SPACE");
  first_->Saved(".tmp-1", "model-1-of-3.safetensors", 10);
  const absl::Status status = service_->AwaitSaved(".tmp-1").status();
  EXPECT_THAT(status, HasReason("NO_SPACE"));
  EXPECT_THAT(status.message(), HasSubstr("trainer rank 2: the disk is full"));
  EXPECT_THAT(service_->lost(), IsOk());  // training continues
}

TEST_F(RankServiceTest, ASaveThatARankIsLostInEndsWithThat) {
  Start();
  Assemble();
  first_->Saved(".tmp-1", "model-1-of-3.safetensors", 10);
  second_->Leave();
  const absl::Status status = service_->AwaitSaved(".tmp-1").status();
  EXPECT_THAT(status, HasReason("RANK_LOST"));
  EXPECT_THAT(status.message(), HasSubstr("trainer rank 2 is lost"));
}

TEST_F(RankServiceTest, ARankThatGoesIsNamedAndNothingIsSentAnyMore) {
  Start();
  Assemble();
  first_->Leave();
  EXPECT_THAT(AwaitLost().message(), HasSubstr("trainer rank 1 is lost"));
  EXPECT_THAT(service_->Send({}, {}), HasReason("RANK_LOST"));
}

TEST_F(RankServiceTest, ARankThatFallsSilentIsLost) {
  Start(absl::Milliseconds(200));
  Assemble();
  EXPECT_THAT(AwaitLost(), HasReason("RANK_LOST"));
}

// The synchronizer refuses the rank (FENCED, EVICTED) or cannot be reached (SYNCHRONIZER_LOST).
TEST_F(RankServiceTest, ARankThatTheSynchronizerRefusesIsNamedAndWorksOnUntilTheGroupEndsWithItsReason) {
  const std::pair<absl::StatusCode, const char*> refusals[] = {
      {absl::StatusCode::kFailedPrecondition, reason::kFenced},
      {absl::StatusCode::kFailedPrecondition, reason::kEvicted},
      {absl::StatusCode::kUnavailable, "SYNCHRONIZER_LOST"},
  };
  for (const auto& [code, reason] : refusals) {
    Start();
    Assemble();
    second_->Refused(static_cast<int32_t>(code), reason);
    const absl::Status refused = AwaitRefused();
    EXPECT_THAT(refused, HasReason(reason));
    EXPECT_EQ(refused.code(), code);
    EXPECT_THAT(refused.message(), HasSubstr("trainer rank 2: no longer a member"));
    // A save still needs all ranks.
    EXPECT_THAT(service_->lost(), IsOk());
    EXPECT_THAT(service_->Send({.kind = trainer::PolicyCommand::Kind::kSave, .folder = ".tmp-1"}, {}), IsOk());
    service_->Stop(refused, /*completed=*/false);
    for (FakeRank* rank : {first_.get(), second_.get()}) {
      EXPECT_EQ(rank->Next().save().folder(), ".tmp-1");
      EXPECT_THAT(rank->End(), HasReason(reason));
    }
    first_.reset();
    second_.reset();
    server_->Stop(absl::Seconds(2));
    MutexLock lock(&mutex_);
    refused_ = absl::OkStatus();
  }
}

TEST_F(RankServiceTest, AReportOfAnErrorWhoseCodeIsNoneIsAnError) {
  for (int32_t code : {0, -3, 17, 1 << 20}) {
    Start();
    Assemble();
    first_->Refused(code, "SOMETHING");
    EXPECT_THAT(AwaitRefused(), HasReason("SOMETHING"));
    first_.reset();
    second_.reset();
    server_->Stop(absl::Seconds(2));
    MutexLock lock(&mutex_);
    refused_ = absl::OkStatus();
  }
}

TEST_F(RankServiceTest, WhatAllRanksHaveStagedIsGatheredByVersion) {
  Start();
  Assemble();
  second_->Staged({1, 4}, {20, 21});
  first_->Staged({1, 4}, {10});
  const auto staged = service_->AwaitStaged({1, 4});
  ASSERT_THAT(staged, IsOk());
  ASSERT_THAT(staged->at(1), IsOk());
  ASSERT_THAT(staged->at(2), IsOk());
  EXPECT_EQ(staged->at(1)->bucket_digests, (std::vector<uint64_t>{10}));
  EXPECT_EQ(staged->at(2)->bucket_digests, (std::vector<uint64_t>{20, 21}));
}

TEST_F(RankServiceTest, ANumberThatIsNotFiniteOnAnotherRankComesWithItsTensor) {
  Start();
  Assemble();
  first_->Staged({1, 4}, {10});
  second_->NotFinite({1, 4}, "model.norm.weight");
  const auto staged = service_->AwaitStaged({1, 4});
  ASSERT_THAT(staged, IsOk());
  EXPECT_THAT(staged->at(1), IsOk());
  const absl::Status why = staged->at(2).status();
  EXPECT_THAT(why, HasReason(reason::kNonFinite));
  EXPECT_THAT(why.message(), HasSubstr("trainer rank 2: model.norm.weight is not finite"));
  EXPECT_EQ(ErrorDetails(why).at("tensor"), "model.norm.weight");
}

TEST_F(RankServiceTest, AStagingThatARankIsLostInEndsWithThat) {
  Start();
  Assemble();
  first_->Staged({1, 4}, {10});
  second_->Leave();
  EXPECT_THAT(service_->AwaitStaged({1, 4}).status(), HasReason("RANK_LOST"));
}

TEST_F(RankServiceTest, ASecondProcessOfARankIsRefusedAndHarmsNobody) {
  Start();
  Assemble();
  FakeRank late(server_->address());
  late.Hello(1);
  EXPECT_THAT(late.End(), HasReason("RANK_TAKEN"));
  EXPECT_THAT(service_->lost(), IsOk());
}

TEST_F(RankServiceTest, AHelloWithoutTheSecretLosesNothingWhateverItSays) {
  Start();
  first_->Hello(1);
  const std::string nearly(kGroupSecretBytes, 't');
  for (const std::string& secret : {std::string(), nearly, kSecret + "s", kSecret.substr(1)}) {
    for (const char* config : {"config", "another"}) {
      FakeRank stranger(server_->address());
      stranger.Hello(2, config, "", secret);
      const absl::Status end = stranger.End();
      EXPECT_THAT(end, HasReason("WRONG_SECRET"));
      EXPECT_TRUE(absl::IsPermissionDenied(end));
      EXPECT_THAT(end.message(), HasSubstr("state/trainer/endpoints/trainer-0.secret"));
    }
  }
  second_->Hello(2);  // the rank's seat is free
  EXPECT_THAT(service_->AwaitRanks(kPatience, [] { return absl::OkStatus(); }), IsOk());
  FakeRank late(server_->address());
  late.Hello(1, "another", "", nearly);
  EXPECT_THAT(late.End(), HasReason("WRONG_SECRET"));
  EXPECT_THAT(service_->lost(), IsOk());
}

TEST_F(RankServiceTest, ARankThatCannotBeIsRefusedAndHarmsNobody) {
  Start();
  auto expect_refused = [this] {
    for (int32_t rank : {-1, 0, 3, 4, 1 << 30}) {
      FakeRank impossible(server_->address());
      impossible.Hello(rank);
      const absl::Status end = impossible.End();
      EXPECT_TRUE(absl::IsInvalidArgument(end)) << end;
      EXPECT_THAT(end, HasReason("BAD_RANK"));
    }
  };
  expect_refused();
  Assemble();
  expect_refused();
  EXPECT_THAT(service_->lost(), IsOk());
}

TEST_F(RankServiceTest, OnceAllSeatsAreTakenNobodyWhoDisagreesEndsTheGroup) {
  Start();
  Assemble();
  FakeRank late(server_->address());
  late.Hello(1, "another");
  EXPECT_THAT(late.End(), HasReason("RANK_TAKEN"));
  EXPECT_THAT(service_->lost(), IsOk());
  EXPECT_THAT(service_->Send({}, {}), IsOk());
}

// The server has required a trainer's certificate or token of every caller.
TEST_F(RankServiceTest, WhereRolesAreAskedForARankNeedsNoSecretButEndsNobodyWithoutIt) {
  const testing::TestAuthority authority;
  security_ = authority.SecurityFor("trainer");
  Start();
  first_->Hello(1, "config", "", "");
  FakeRank other(server_->address());
  other.Hello(2, "another", "", "");
  EXPECT_THAT(other.End(), HasReason("RANK_MISMATCH"));
  FakeRank wrong(server_->address());
  wrong.Hello(2, "config", "", "wrong");
  EXPECT_THAT(wrong.End(), HasReason("WRONG_SECRET"));
  EXPECT_THAT(service_->lost(), IsOk());
  const absl::Status missing = service_->AwaitRanks(absl::Milliseconds(100), [] { return absl::OkStatus(); });
  EXPECT_THAT(missing.message(), HasSubstr("The last one was refused: trainer rank 2 has another configuration"));
  second_->Hello(2, "config", "", "");
  EXPECT_THAT(service_->AwaitRanks(kPatience, [] { return absl::OkStatus(); }), IsOk());
}

TEST_F(RankServiceTest, RanksThatDoNotComeAreNamed) {
  Start();
  first_->Hello(1);
  const absl::Status status = service_->AwaitRanks(absl::Milliseconds(300), [] { return absl::OkStatus(); });
  EXPECT_THAT(status, HasReason("RANK_LOST"));
  EXPECT_THAT(status.message(), HasSubstr("trainer rank 2 of 3 has not come"));
  EXPECT_TRUE(absl::IsCancelled(service_->AwaitRanks(kPatience, [] { return absl::CancelledError("stop"); })));
}

}  // namespace
}  // namespace syncopate::trainerd
