#include <cstring>
#include <memory>
#include <random>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "synchronizer/attempts/group_name.h"
#include "synchronizer/nccl/nccl_receiver.h"
#include "synchronizer/nccl/nccl_source.h"
#include "synchronizer/plan/layout_text.h"
#include "synchronizer/transport/split_copies.h"
#include "tests/support/fake_communicators.h"
#include "tests/support/notification.h"
#include "tests/support/status_matchers.h"
#include "tests/support/synchronizer_fixtures.h"

namespace syncopate::synchronizer {
namespace {

using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;
using ::testing::Each;

// A source's staged bytes, one slot. Thread-safe but for the bytes.
class HostStaged final : public StagedMemory {
 public:
  explicit HostStaged(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {}
  void Stage(PolicyVersion version, uint64_t seed) {
    std::function<void()> superseded;
    {
      MutexLock lock(&mutex_);
      superseded = on_superseded_;
      version_ = version;
    }
    if (superseded) superseded();
    std::mt19937_64 random(seed);
    for (char& byte : bytes_) byte = static_cast<char>(random());
  }
  const char* data() const { return bytes_.data(); }
  int pins() {
    MutexLock lock(&mutex_);
    return pins_;
  }

  absl::StatusOr<std::unique_ptr<StagedVersion>> Pin(PolicyVersion version,
                                                     std::function<void()> on_superseded) override {
    MutexLock lock(&mutex_);
    if (version != version_) return Error(absl::StatusCode::kNotFound, "VERSION_NOT_STAGED", "not here");
    ++pins_;
    on_superseded_ = std::move(on_superseded);
    return std::make_unique<Slot>(this);
  }

 private:
  struct Slot final : StagedVersion {
    explicit Slot(HostStaged* owner) : of(owner) {}
    ~Slot() override {
      MutexLock lock(&of->mutex_);
      --of->pins_;
      of->on_superseded_ = nullptr;
    }
    const char* data() const override { return of->bytes_.data(); }
    int64_t bytes() const override { return static_cast<int64_t>(of->bytes_.size()); }
    HostStaged* const of;
  };

  std::vector<char> bytes_;
  Mutex mutex_;
  PolicyVersion version_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> on_superseded_ ABSL_GUARDED_BY(mutex_);
  int pins_ ABSL_GUARDED_BY(mutex_) = 0;
};

// T sources and M replicas of P ranks over the transport "nccl" with fake communicators, driven as the synchronizer
// would.
class NcclRig {
 public:
  struct Source {
    explicit Source(int64_t bytes) : staged(bytes) {}
    HostStaged staged;
    nccl::FakeDeviceControl control;
    std::unique_ptr<NcclSource> transport;
    SyncMember member;
  };
  struct Receiver {
    nccl::FakeDeviceControl control;
    std::unique_ptr<NcclReceiver> transport;
    SyncMember member;
    std::vector<char> bytes;
    std::vector<int> arrivals;
    std::stop_source stop;
  };

  NcclRig(const std::string& source_layout, int replicas, const std::string& destination_layout)
      : manifest_(std::make_shared<Manifest>(Model())),
        source_layout_(source_layout),
        destination_layout_(destination_layout),
        plan_(*SyncPlan::Create(*manifest_, *BuildLayout(*manifest_, source_layout),
                                *BuildLayout(*manifest_, destination_layout))),
        replicas_(replicas) {
    for (int32_t rank = 0; rank < plan_.sources(); ++rank) AddSource(rank);
    for (int32_t i = 0; i < replicas * plan_.destinations(); ++i) AddReceiver(i);
  }

  void Stage(int64_t step) {
    for (size_t rank = 0; rank < sources_.size(); ++rank) sources_[rank]->staged.Stage({1, step}, step * 100 + rank);
  }

  // From now on.
  void SendAdaptersAlone(const Subset& subset) {
    subset_ = subset;
    for (auto& receiver : receivers_) receiver->member.base = false;
  }
  std::vector<Copy> CopiesTo(int32_t slice) const {
    const bool base = subset_.adapters.empty();
    return Split(*manifest_, *BuildLayout(*manifest_, destination_layout_), slice, plan_.CopiesTo(slice),
                 subset_.adapters, base)
        .sent;
  }

  // Everybody prepares; then the attempt is of those receivers that take part.
  absl::Status Prepare(int64_t step, std::vector<int> taking_part = {}, absl::Duration deadline = absl::Seconds(20),
                       bool rehearsal = false) {
    if (taking_part.empty()) {
      for (size_t i = 0; i < receivers_.size(); ++i) taking_part.push_back(static_cast<int>(i));
    }
    deadline_ = deadline;
    taking_part_ = taking_part;
    synchronizer::Prepare prepare;
    prepare.attempt = attempt_ = ++attempts_;
    prepare.rehearsal = rehearsal;
    if (!rehearsal) prepare.version = {1, step};
    prepare.sources = plan_.sources();
    prepare.receivers = static_cast<int32_t>(taking_part.size()) / plan_.destinations();
    prepare.deadline = deadline;
    prepare.source_layout = source_layout_;
    prepare.destination_layout = destination_layout_;
    prepare.subset = subset_;
    prepare.group = group();
    for (auto& source : sources_) {
      SYNCOPATE_ASSIGN_OR_RETURN(source->member.rendezvous, source->transport->Open(prepare));
    }
    for (int index : taking_part) {
      SYNCOPATE_ASSIGN_OR_RETURN(receivers_[index]->member.rendezvous, receivers_[index]->transport->Open(prepare));
    }
    return absl::OkStatus();
  }
  std::string group() const {
    std::vector<MemberId> sources;
    std::vector<MemberId> receivers;
    for (const auto& source : sources_) sources.push_back(source->member.id);
    for (int index : taking_part_) receivers.push_back(receivers_[index]->member.id);
    return GroupName(sources, receivers);
  }
  Transfer MakeTransfer() const {
    Transfer transfer;
    transfer.attempt = attempt_;
    transfer.group = group();
    for (const auto& source : sources_) transfer.sources.push_back(source->member);
    for (int index : taking_part_) transfer.receivers.push_back(receivers_[index]->member);
    return transfer;
  }
  absl::Status Start(size_t rank) {
    return sources_[rank]->transport->Start(MakeTransfer(), [this](absl::Status status) { done_.Put(status); });
  }
  ReceiveRequest RequestOf(int32_t place) {
    Receiver& receiver = *receivers_[taking_part_[place]];
    Transfer transfer = MakeTransfer();
    ReceiveRequest request;
    request.attempt = attempt_;
    request.sources = transfer.sources;
    request.receivers = transfer.receivers;
    request.group = transfer.group;
    request.self = place;
    request.world = plan_.destinations();
    request.replicas = static_cast<int32_t>(taking_part_.size()) / request.world;
    request.copies = CopiesTo(place % request.world);
    request.deadline = Clock::Real()->Now() + deadline_;
    request.on_arrived = [&receiver](ByteRange range, void*) {
      for (int64_t at = range.begin; at < range.end; ++at) ++receiver.arrivals[at];
    };
    return request;
  }
  // The receiver that is `place`-th of those who take part.
  absl::Status ReceiveOne(int32_t place) {
    Receiver& receiver = *receivers_[taking_part_[place]];
    receiver.arrivals.assign(receiver.bytes.size(), 0);
    receiver.bytes.assign(receiver.bytes.size(), 0);
    return receiver.transport->Receive(RequestOf(place), receiver.bytes.data(), receiver.stop.get_token());
  }
  // A rehearsal with all; `connected` gets what each source and each receiver says.
  void BeginRehearsal(Mailbox<absl::Status>* connected, std::vector<int> taking_part = {},
                      absl::Duration deadline = absl::Seconds(20)) {
    ASSERT_THAT(Prepare(0, std::move(taking_part), deadline, /*rehearsal=*/true), IsOk());
    for (auto& source : sources_) {
      auto done = [connected](const absl::Status& status) { connected->Put(status); };
      ASSERT_THAT(source->transport->Start(MakeTransfer(), done), IsOk());
    }
    for (size_t place = 0; place < taking_part_.size(); ++place) {
      receivers_[taking_part_[place]]->transport->Connect(
          RequestOf(static_cast<int32_t>(place)), [connected](const absl::Status& status) { connected->Put(status); });
    }
  }
  size_t taking_part() const { return sources_.size() + taking_part_.size(); }
  // All of them at once; what the receivers say.
  std::vector<absl::Status> Exchange() {
    for (size_t rank = 0; rank < sources_.size(); ++rank) EXPECT_THAT(Start(rank), IsOk());
    std::vector<absl::Status> statuses(taking_part_.size());
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < taking_part_.size(); ++i) {
      threads.emplace_back([this, i, &statuses] { statuses[i] = ReceiveOne(static_cast<int32_t>(i)); });
    }
    threads.clear();
    return statuses;
  }
  void Finish() {
    for (auto& source : sources_) source->transport->Close(attempt_);
    for (int index : taking_part_) receivers_[index]->transport->Close(attempt_);
  }
  void ExpectArrived(int32_t place) {
    const Receiver& receiver = *receivers_[taking_part_[place]];
    for (const Copy& copy : CopiesTo(place % plan_.destinations())) {
      ASSERT_EQ(std::memcmp(receiver.bytes.data() + copy.destination_offset,
                            sources_[copy.source]->staged.data() + copy.source_offset, static_cast<size_t>(copy.bytes)),
                0)
          << "receiver " << place << ", source " << copy.source;
      for (int64_t at = copy.destination_offset; at < copy.destination_offset + copy.bytes; ++at) {
        ASSERT_EQ(receiver.arrivals[at], 1) << "receiver " << place << ", byte " << at;
      }
    }
  }
  void ExpectSyncs(int64_t step) {
    Stage(step);
    ASSERT_THAT(Prepare(step), IsOk());
    EXPECT_THAT(Exchange(), Each(IsOk()));
    for (size_t i = 0; i < receivers_.size(); ++i) ExpectArrived(static_cast<int32_t>(i));
    ASSERT_TRUE(done_.WaitFor(done_.size() < sources_.size() ? sources_.size() : done_.size()));
    Finish();
  }

  // After Prepare: the one at the last place is no longer part of the attempt.
  void LeaveOut(int index) { std::erase(taking_part_, index); }

  nccl::FakeNetwork* network() { return &network_; }
  Mailbox<absl::Status>* done() { return &done_; }
  Source* source(size_t rank = 0) { return sources_[rank].get(); }
  Receiver* receiver(size_t index = 0) { return receivers_[index].get(); }
  size_t receivers() const { return receivers_.size(); }

 private:
  static Manifest Model() {
    auto manifest = Manifest::Create({{"embed", DType::kBFloat16, {64, 96}},
                                      {"layer.weight", DType::kBFloat16, {96, 128}},
                                      {"norm", DType::kBFloat16, {33}},
                                      {"head", DType::kBFloat16, {128, 96}}},
                                     4096);
    SYNCOPATE_CHECK(manifest.ok());
    return *std::move(manifest);
  }
  nccl::GroupWorker::DeviceFactory DeviceOf(nccl::FakeDeviceControl* control) {
    return [this, control] { return std::make_unique<nccl::FakeDevice>(&network_, control); };
  }
  void AddSource(int32_t rank) {
    auto source = std::make_unique<Source>(plan_.send_bytes(rank));
    source->member.id = TrainerId("t", rank, plan_.sources());
    NcclSource::Options options;
    options.rank = rank;
    options.manifest = manifest_;
    options.facts = {22809, absl::StrCat("GPU-t", rank)};
    options.rounds = {4, 1024};
    source->transport = *NcclSource::Create(options, &source->staged, DeviceOf(&source->control),
                                            [this]() -> absl::StatusOr<nccl::UniqueId> { return network_.NewId(); });
    sources_.push_back(std::move(source));
  }
  void AddReceiver(int32_t index) {
    auto receiver = std::make_unique<Receiver>();
    const int32_t world = plan_.destinations();
    receiver->member.id = RollouterId(index / world, "r", index % world, world);
    int64_t bytes = 0;
    for (const Copy& copy : plan_.CopiesTo(index % world))
      bytes = std::max(bytes, copy.destination_offset + copy.bytes);
    receiver->bytes.resize(static_cast<size_t>(bytes));
    NcclReceiver::Options options;
    options.facts = {22809, absl::StrCat("GPU-r", index)};
    options.rounds = {4, 1024};
    receiver->transport = *NcclReceiver::Create(options, DeviceOf(&receiver->control));
    receivers_.push_back(std::move(receiver));
  }

  const std::shared_ptr<Manifest> manifest_;
  const std::string source_layout_;
  const std::string destination_layout_;
  const SyncPlan plan_;
  const int32_t replicas_;
  nccl::FakeNetwork network_;
  Mailbox<absl::Status> done_;
  std::vector<std::unique_ptr<Source>> sources_;
  std::vector<std::unique_ptr<Receiver>> receivers_;
  Subset subset_;
  std::vector<int> taking_part_;
  absl::Duration deadline_;
  int64_t attempts_ = 0;
  int64_t attempt_ = 0;
};

struct Shape {
  const char* source_layout;
  int replicas;
  const char* destination_layout;
  int64_t communicators;
};

class NcclShapeTest : public ::testing::TestWithParam<Shape> {};

TEST_P(NcclShapeTest, BringsEveryByteOnceInThreeSyncsOverTheSameCommunicators) {
  NcclRig rig(GetParam().source_layout, GetParam().replicas, GetParam().destination_layout);
  for (int64_t step : {1, 2, 3}) rig.ExpectSyncs(step);
  EXPECT_EQ(rig.network()->ids(), GetParam().communicators);
  EXPECT_EQ(rig.source()->staged.pins(), 0);
}

INSTANTIATE_TEST_SUITE_P(Shapes, NcclShapeTest,
                         ::testing::Values(Shape{"whole", 1, "whole:1", 1}, Shape{"flat:2", 2, "whole:1", 1},
                                           Shape{"flat:3", 1, "whole:1", 1}, Shape{"whole", 3, "whole:1", 1},
                                           Shape{"flat:2", 3, "whole:1", 2}, Shape{"fsdp2:2", 1, "whole:2", 1},
                                           Shape{"fsdp2:2", 3, "whole:2", 4}));

TEST_P(NcclShapeTest, WhatARehearsalFormsIsWhatTheNextSyncsUse) {
  NcclRig rig(GetParam().source_layout, GetParam().replicas, GetParam().destination_layout);
  Mailbox<absl::Status> connected;
  rig.BeginRehearsal(&connected);  // nothing is staged yet
  ASSERT_TRUE(connected.WaitFor(rig.taking_part()));
  EXPECT_THAT(connected.All(), Each(IsOk()));
  rig.Finish();
  const int formed = rig.receiver()->control.counts().joins;
  EXPECT_GE(formed, 1);
  for (int64_t step : {1, 2}) rig.ExpectSyncs(step);
  EXPECT_EQ(rig.receiver()->control.counts().joins, formed);
  EXPECT_EQ(rig.network()->ids(), GetParam().communicators);
}

TEST(NcclTransportTest, ASyncOfTheSameMembersUsesWhatARehearsalIsStillForming) {
  NcclRig rig("whole", 2, "whole:1");
  rig.Stage(1);
  rig.receiver(1)->control.Freeze(true);  // its first message does not go through: the rehearsal goes on
  Mailbox<absl::Status> connected;
  rig.BeginRehearsal(&connected);
  ASSERT_THAT(rig.Prepare(1), IsOk()) << "nobody waits for the rehearsal";
  Mailbox<std::vector<absl::Status>> synced;
  std::jthread sync([&] { synced.Put(rig.Exchange()); });
  EXPECT_FALSE(synced.WaitFor(1, absl::Milliseconds(30)));
  rig.receiver(1)->control.Freeze(false);
  ASSERT_TRUE(synced.WaitFor(1));
  EXPECT_THAT(synced.All()[0], Each(IsOk()));
  EXPECT_THAT(connected.All(), Each(IsOk()));
  for (int32_t place : {0, 1}) rig.ExpectArrived(place);
  EXPECT_EQ(rig.network()->ids(), 1);
}

TEST(NcclTransportTest, ARehearsalThatIsEndedLeavesTheNextSyncToFormTheGroup) {
  NcclRig rig("whole", 2, "whole:1");
  rig.receiver(1)->control.Freeze(true);
  Mailbox<absl::Status> connected;
  rig.BeginRehearsal(&connected);
  rig.Finish();
  ASSERT_TRUE(connected.WaitFor(rig.taking_part()));
  EXPECT_THAT(connected.All(), ::testing::Contains(HasReason("CLOSED")));
  rig.receiver(1)->control.Freeze(false);
  rig.Stage(1);
  for (int attempt = 0; attempt < 2; ++attempt) {  // who had connected when it ended may keep what others aborted
    ASSERT_THAT(rig.Prepare(1), IsOk());
    if (rig.source()->member.rendezvous.find(rig.group()) == std::string::npos) break;
    EXPECT_THAT(rig.Start(0), HasReason("GROUP_LOST"));
    rig.Finish();
  }
  EXPECT_THAT(rig.Exchange(), Each(IsOk()));
  for (int32_t place : {0, 1}) rig.ExpectArrived(place);
}

TEST(NcclTransportTest, IdsThatFewerReceiversDoNotNeedAreUsedForTheNextGroup) {
  NcclRig rig("flat:2", 3, "whole:1");
  rig.Stage(1);
  ASSERT_THAT(rig.Prepare(1), IsOk());  // by broadcast: one communicator a source
  EXPECT_EQ(rig.network()->ids(), 2);
  rig.LeaveOut(2);  // it has not answered in time
  EXPECT_THAT(rig.Exchange(), Each(IsOk()));
  rig.Finish();
  ASSERT_THAT(rig.Prepare(1, {0}), IsOk());
  EXPECT_THAT(rig.Exchange(), Each(IsOk()));
  EXPECT_EQ(rig.network()->ids(), 2) << "the one that was left over";
}

TEST(NcclTransportTest, ADeadMemberHangsTheOthersUntilTheyAreToldAndTheNextGroupWorks) {
  NcclRig rig("flat:2", 2, "whole:1");
  rig.ExpectSyncs(1);
  rig.Stage(2);
  ASSERT_THAT(rig.Prepare(2), IsOk());
  rig.source(1)->control.Freeze(true);  // killed, stopped: it moves nothing and says nothing
  ASSERT_THAT(rig.Start(0), IsOk());
  ASSERT_THAT(rig.Start(1), IsOk());
  Mailbox<absl::Status> outcome;
  std::jthread first([&] { outcome.Put(rig.ReceiveOne(0)); });
  std::jthread second([&] { outcome.Put(rig.ReceiveOne(1)); });
  EXPECT_FALSE(outcome.WaitFor(1, absl::Milliseconds(30)));
  for (size_t i : {0, 1}) rig.receiver(i)->stop.request_stop();
  rig.Finish();
  ASSERT_TRUE(outcome.WaitFor(2, absl::Seconds(5)));
  EXPECT_THAT(outcome.All(), Each(HasReason("CANCELLED")));
  for (size_t i : {0, 1}) EXPECT_EQ(rig.receiver(i)->control.counts().aborts, 1);
  // With another one in its place, and one receiver fewer.
  rig.source(1)->control.Freeze(false);
  rig.receiver(0)->stop = std::stop_source();
  rig.Stage(3);
  ASSERT_THAT(rig.Prepare(3, {0}), IsOk());
  EXPECT_THAT(rig.Exchange(), Each(IsOk()));
  rig.ExpectArrived(0);
}

TEST(NcclTransportTest, TheDeadlineEndsAGroupThatNeverMeets) {
  NcclRig rig("flat:2", 1, "whole:1");
  rig.Stage(1);
  ASSERT_THAT(rig.Prepare(1, {}, absl::Milliseconds(60)), IsOk());
  ASSERT_THAT(rig.Start(0), IsOk());  // source rank 1 never comes
  EXPECT_THAT(rig.ReceiveOne(0), HasReason("DEADLINE"));
  ASSERT_TRUE(rig.done()->WaitFor(1));
  EXPECT_THAT(rig.done()->All()[0], HasReason("DEADLINE"));
  EXPECT_EQ(rig.source(0)->control.counts().open, 0);
}

TEST(NcclTransportTest, AFailedCommunicatorIsAbortedAndReplaced) {
  NcclRig rig("whole", 1, "whole:1");
  rig.ExpectSyncs(1);
  rig.Stage(2);
  ASSERT_THAT(rig.Prepare(2), IsOk());
  rig.receiver()->control.SetPollError(Error(absl::StatusCode::kUnavailable, "PEER_LOST", "a broken link"));
  ASSERT_THAT(rig.Start(0), IsOk());
  EXPECT_THAT(rig.ReceiveOne(0), HasReason("PEER_LOST"));
  ASSERT_TRUE(rig.done()->WaitFor(2));  // a source that is cancelled in the middle loses the group too
  rig.Finish();
  rig.receiver()->control.SetPollError(absl::OkStatus());
  // Everybody sees that the receiver has lost what the source still has; the next attempt forms a new group.
  ASSERT_THAT(rig.Prepare(2), IsOk());
  EXPECT_THAT(rig.Start(0), HasReason("GROUP_LOST"));
  EXPECT_THAT(rig.ReceiveOne(0), HasReason("GROUP_LOST"));
  rig.Finish();
  ASSERT_THAT(rig.Prepare(2), IsOk());
  EXPECT_THAT(rig.Exchange(), Each(IsOk()));
  rig.ExpectArrived(0);
}

TEST(NcclTransportTest, AMemberWithoutTheCommunicatorsOfAKnownGroupSaysSo) {
  NcclRig rig("whole", 1, "whole:1");
  rig.Stage(1);
  ASSERT_THAT(rig.Prepare(1), IsOk());
  rig.source()->member.rendezvous = nccl::Rendezvous{22809, "GPU-t0", "", {}}.ToString();
  EXPECT_THAT(rig.ReceiveOne(0), HasReason("GROUP_LOST"));
}

TEST(NcclTransportTest, IdsOfAnAttemptThatNeverStartedAreUsedForTheNext) {
  NcclRig rig("whole", 1, "whole:1");
  rig.Stage(1);
  for (int i = 0; i < 5; ++i) {
    ASSERT_THAT(rig.Prepare(1), IsOk());
    rig.Finish();
  }
  EXPECT_EQ(rig.network()->ids(), 1);
  EXPECT_EQ(rig.source()->staged.pins(), 0);
}

TEST(NcclTransportTest, AtMostTwoGroupsAreKeptAndOlderOnesFinalised) {
  NcclRig rig("whole", 3, "whole:1");
  rig.Stage(1);
  for (std::vector<int> members : {std::vector<int>{0}, {1}, {2}, {0, 1}, {0, 2}}) {
    ASSERT_THAT(rig.Prepare(1, members), IsOk());
    EXPECT_THAT(rig.Exchange(), Each(IsOk()));
    rig.Finish();
  }
  absl::Time until = Clock::Real()->Now() + kTestDeadline;
  while (rig.source()->control.counts().finalised < 3 && Clock::Real()->Now() < until) std::this_thread::yield();
  EXPECT_EQ(rig.source()->control.counts().finalised, 3);
  EXPECT_EQ(rig.source()->control.counts().open, 2);
  EXPECT_EQ(rig.source()->control.counts().aborts, 0);
}

TEST(NcclTransportTest, AGroupThatIsAboutToBeEndedIsNotOfferedForTheNextAttempt) {
  NcclRig rig("whole", 2, "whole:1");
  rig.Stage(1);
  for (int turn = 0; turn < 300; ++turn) {
    const std::vector<std::vector<int>> groups = {{0}, {1}, {0, 1}};
    ASSERT_THAT(rig.Prepare(1, groups[turn % 3], absl::Seconds(2)), IsOk());
    ASSERT_THAT(rig.Exchange(), Each(IsOk())) << "turn " << turn;
    rig.Finish();
  }
}

TEST(NcclTransportTest, ASlotThatIsTakenWhileItIsSentIsReportedWithoutLosingTheGroup) {
  NcclRig rig("whole", 1, "whole:1");
  rig.Stage(1);
  ASSERT_THAT(rig.Prepare(1), IsOk());
  rig.source()->control.Freeze(true);
  ASSERT_THAT(rig.Start(0), IsOk());
  std::jthread receiver([&] { EXPECT_THAT(rig.ReceiveOne(0), IsOk()); });
  rig.Stage(2);
  rig.source()->control.Freeze(false);
  ASSERT_TRUE(rig.done()->WaitFor(1));
  EXPECT_THAT(rig.done()->All()[0], HasReason("SUPERSEDED"));
  receiver.join();
  EXPECT_EQ(rig.source()->control.counts().aborts, 0);
}

TEST(NcclTransportTest, AdaptersAloneAreSentToReceiversThatHoldTheBase) {
  for (int replicas : {1, 2}) {
    NcclRig rig("whole", replicas, "whole:1");
    rig.SendAdaptersAlone({{{1, 2}, {3, 4}}, 77});
    rig.Stage(1);
    ASSERT_THAT(rig.Prepare(1), IsOk());
    EXPECT_THAT(rig.Exchange(), Each(IsOk()));
    for (int i = 0; i < replicas; ++i) {
      rig.ExpectArrived(i);
      EXPECT_EQ(rig.receiver(i)->arrivals.front(), 0) << "the first tensor is base";
    }
    rig.Finish();
  }
}

TEST(NcclTransportTest, AnAbortThatNeverEndsMakesEveryLaterTransferFailAtOnce) {
  NcclRig rig("whole", 1, "whole:1");
  rig.Stage(1);
  ASSERT_THAT(rig.Prepare(1, {}, absl::Milliseconds(40)), IsOk());
  rig.receiver()->control.SetAbortError(Error(absl::StatusCode::kInternal, "ABORT_STUCK", "never"));
  EXPECT_THAT(rig.ReceiveOne(0), HasReason("ABORT_STUCK"));
  rig.Finish();
  ASSERT_THAT(rig.Prepare(1), IsOk());
  EXPECT_THAT(rig.ReceiveOne(0), HasReason("ABORT_STUCK"));
}

TEST(NcclTransportTest, MembersThatCannotMeetAreRefusedBeforeACommunicatorExists) {
  NcclRig rig("whole", 1, "whole:1");
  rig.Stage(1);
  ASSERT_THAT(rig.Prepare(1), IsOk());
  rig.receiver()->member.rendezvous = nccl::Rendezvous{22702, "GPU-r0", "", {}}.ToString();
  EXPECT_THAT(rig.Start(0), HasReason("NCCL_MISMATCH"));
  EXPECT_THAT(rig.ReceiveOne(0), HasReason("NCCL_MISMATCH"));
  EXPECT_EQ(rig.receiver()->control.counts().joins, 0);
}

TEST(NcclTransportTest, AnAttemptThatIsNotOpenIsNotStarted) {
  NcclRig rig("whole", 1, "whole:1");
  rig.Stage(1);
  ASSERT_THAT(rig.Prepare(1), IsOk());
  rig.Finish();
  EXPECT_THAT(rig.Start(0), HasReason("NOT_PREPARED"));
  Prepare other;
  other.version = {1, 7};
  EXPECT_THAT(rig.source()->transport->Open(other).status(), HasReason("VERSION_NOT_STAGED"));
}

}  // namespace
}  // namespace syncopate::synchronizer
