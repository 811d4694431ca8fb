// One file, as all of these tests move bytes between a source and receivers of one process by the same rig.

#include "tests/support/transport_conformance.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <random>

#include "synchronizer/transport/inproc_transport.h"
#include "synchronizer/transport/shared_base_memory.h"

namespace syncopate::synchronizer {
namespace {

class InprocHarness final : public TransportHarness {
 public:
  SourceTransport* AddSource(WeightStore* store) override {
    std::string name = absl::StrCat("source-", sources_.size());
    hub_.Add(name, store);
    sources_.push_back(std::make_unique<InprocSource>(name));
    return sources_.back().get();
  }
  void KillSource(SourceTransport* source) override { hub_.Remove(*source->Open({})); }
  ReceiverTransport* receiver() override { return &receiver_; }
  ReceiverTransport* AddReceiver() override {
    return more_.emplace_back(std::make_unique<InprocReceiver>(&hub_)).get();
  }

 private:
  InprocHub hub_;
  std::vector<std::unique_ptr<InprocSource>> sources_;
  InprocReceiver receiver_{&hub_};
  std::vector<std::unique_ptr<InprocReceiver>> more_;
};

std::unique_ptr<TransportHarness> MakeInprocHarness() { return std::make_unique<InprocHarness>(); }

INSTANTIATE_TEST_SUITE_P(Inproc, TransportConformanceTest, ::testing::Values(&MakeInprocHarness));
INSTANTIATE_TEST_SUITE_P(Inproc, TransportShapesTest, ::testing::Values(&MakeInprocHarness));

class WeightReceiverTest : public ::testing::Test {
 protected:
  explicit WeightReceiverTest(int slots = 2) : rig_(&harness_, SmallModel(), slots) { rig_.Stage(1); }

  InprocHarness harness_;
  SyncRig rig_;
};

TEST_F(WeightReceiverTest, TheSameBitsUnderANewVersionAreRelabelledWithoutATransfer) {
  ASSERT_TRUE(rig_.Sync(rig_.receiver()).ok());
  const char* live = rig_.receiver()->target.live();
  int chunks = rig_.store()->chunks();
  Prepare prepare = rig_.Offer();
  prepare.version = {2, 0};
  auto prepared = rig_.receiver()->receiver->Prepare(prepare);
  ASSERT_TRUE(prepared.ok());
  EXPECT_TRUE(prepared->already_serves);
  auto installed = rig_.receiver()->receiver->Install({prepare.attempt});
  ASSERT_TRUE(installed.ok());
  EXPECT_TRUE(installed->relabelled);
  EXPECT_EQ(rig_.receiver()->target.live(), live);
  EXPECT_EQ(rig_.receiver()->target.serving(), (PolicyVersion{2, 0}));
  EXPECT_EQ(rig_.receiver()->receiver->serving(), (PolicyVersion{2, 0}));
  EXPECT_EQ(rig_.store()->chunks(), chunks);
}

TEST_F(WeightReceiverTest, TheServingVersionNeverGoesBack) {
  rig_.Stage(5);
  ASSERT_TRUE(rig_.Sync(rig_.receiver()).ok());
  Prepare older = rig_.Offer();
  older.version = {1, 4};
  EXPECT_THAT(rig_.receiver()->receiver->Prepare(older).status(), HasReason("OLD_VERSION"));
  older.version = {1, 5};
  EXPECT_THAT(rig_.receiver()->receiver->Prepare(older).status(), HasReason("OLD_VERSION"));
}

// Delays installs and loses its weights when the test says so, and counts its users.
class SleepyTarget final : public WeightTarget {
 public:
  explicit SleepyTarget(int64_t bytes) : arenas_(bytes) {}
  char* shadow() override { return arenas_.shadow(); }
  absl::StatusOr<InstallResult> Install(const PolicyVersion& version, uint64_t digest,
                                        absl::Duration deadline) override {
    sleep_.slept = false;
    return arenas_.Install(version, digest, deadline);
  }
  absl::StatusOr<InstallResult> Relabel(const PolicyVersion& version, absl::Duration deadline) override {
    return arenas_.Relabel(version, deadline);
  }
  absl::Status BeginAttempt() override {
    if (held_) return Error(absl::StatusCode::kUnavailable, kHeld, "asleep");
    ++attempts_;
    return absl::OkStatus();
  }
  void EndAttempt() override { --attempts_; }
  void RestoreShadow() override {
    EXPECT_GT(attempts_, 0) << "the weight sets may be gone";
    ++restored_;
  }
  ReceiverWeights LastSleep() const override { return sleep_; }

  bool held_ = false;
  int attempts_ = 0;  // attempts in progress
  int restored_ = 0;
  ReceiverWeights sleep_;

 private:
  ArenaPair arenas_;
};

class SleepyReceiverTest : public WeightReceiverTest {
 protected:
  SleepyReceiverTest() {
    rig_.receiver()->receiver =
        std::make_unique<WeightReceiver>(WeightReceiver::Options{SmallModel(), rig_.receiver()->id}, &target_,
                                         std::vector<ReceiverTransport*>{harness_.receiver()});
  }
  SleepyTarget target_{SmallModel().arena_bytes()};
};

TEST_F(SleepyReceiverTest, ATargetThatHoldsInstallsBackIsNotTouched) {
  target_.held_ = true;
  EXPECT_THAT(rig_.Sync(rig_.receiver()), HasReason("HELD"));
  EXPECT_EQ(target_.attempts_, 0);
  target_.held_ = false;
  EXPECT_TRUE(rig_.Sync(rig_.receiver()).ok());
  EXPECT_EQ(target_.attempts_, 0);
}

TEST_F(SleepyReceiverTest, TheTargetKnowsOfEachAttemptUntilItsEndHoweverItEnds) {
  const Prepare moved = rig_.Offer();
  ASSERT_TRUE(rig_.Move(rig_.receiver(), moved).ok());
  EXPECT_EQ(target_.attempts_, 1);
  EXPECT_THAT(rig_.receiver()->receiver->Prepare(rig_.Offer()).status(), HasReason("BUSY"));
  EXPECT_EQ(target_.attempts_, 1);
  rig_.Finish(rig_.receiver(), moved.attempt);
  EXPECT_EQ(target_.attempts_, 0);
  Prepare none = rig_.Offer();
  none.version = PolicyVersion();
  EXPECT_THAT(rig_.receiver()->receiver->Prepare(none).status(), HasReason("OLD_VERSION"));
  EXPECT_EQ(target_.attempts_, 0);
}

TEST_F(SleepyReceiverTest, WhatIsDoneAfterAReportIsLeftIfTheTargetSleepsByThen) {
  ASSERT_TRUE(rig_.Sync(rig_.receiver()).ok());
  rig_.receiver()->receiver->WorkAfterReport();
  EXPECT_EQ(target_.restored_, 1);
  target_.held_ = true;
  rig_.receiver()->receiver->WorkAfterReport();
  EXPECT_EQ(target_.restored_, 1);
  EXPECT_EQ(target_.attempts_, 0);
}

TEST_F(SleepyReceiverTest, WeightsThatASleepDroppedAreSentAgainAndThoseThatItKeptAreNot) {
  ASSERT_TRUE(rig_.Sync(rig_.receiver()).ok());
  const PolicyVersion served = rig_.receiver()->receiver->serving();
  target_.sleep_ = {.sleep_level = 1, .free_cache_engine = true, .slept = true};
  EXPECT_EQ(rig_.receiver()->receiver->serving(), served);
  EXPECT_THAT(rig_.Sync(rig_.receiver()), HasReason("OLD_VERSION"));
  target_.sleep_.sleep_level = 2;
  EXPECT_TRUE(rig_.receiver()->receiver->serving().IsNone());
  ASSERT_TRUE(rig_.Sync(rig_.receiver()).ok());
  EXPECT_EQ(rig_.receiver()->receiver->serving(), served);
}

TEST_F(WeightReceiverTest, SaysOfBytesThatTheyHaveArrivedBeforeTheTransferHasEnded) {
  std::atomic<int64_t> arrived = 0;
  WeightReceiver::Options options{SmallModel(), rig_.receiver()->id};
  options.on_arrived = [&arrived](int64_t bytes) { arrived += bytes; };
  rig_.receiver()->receiver = std::make_unique<WeightReceiver>(options, &rig_.receiver()->target,
                                                               std::vector<ReceiverTransport*>{harness_.receiver()});
  const Prepare prepare = rig_.Offer();
  const auto received = rig_.Move(rig_.receiver(), prepare);
  ASSERT_TRUE(received.ok());
  EXPECT_EQ(arrived, received->bytes.total());
  EXPECT_GT(arrived, 0);
  rig_.Finish(rig_.receiver(), prepare.attempt);
}

TEST_F(WeightReceiverTest, TakesOneAttemptAtATime) {
  Prepare first = rig_.Offer();
  ASSERT_TRUE(rig_.Move(rig_.receiver(), first).ok());
  EXPECT_THAT(rig_.receiver()->receiver->Prepare(rig_.Offer()).status(), HasReason("BUSY"));
  rig_.receiver()->receiver->Finish(first.attempt);
  EXPECT_TRUE(rig_.receiver()->receiver->Prepare(rig_.Offer()).ok());
}

TEST_F(WeightReceiverTest, InstallsNothingThatWasNotVerifiedOrWasFinished) {
  EXPECT_THAT(rig_.receiver()->receiver->Install({1}).status(), HasReason("NOT_VERIFIED"));
  Prepare prepare = rig_.Offer();
  ASSERT_TRUE(rig_.Move(rig_.receiver(), prepare).ok());
  EXPECT_THAT(rig_.receiver()->receiver->Install({prepare.attempt + 1}).status(), HasReason("NOT_VERIFIED"));
  rig_.receiver()->receiver->FinishAny();
  EXPECT_THAT(rig_.receiver()->receiver->Install({prepare.attempt}).status(), HasReason("NOT_VERIFIED"));
  EXPECT_TRUE(rig_.receiver()->target.serving().IsNone());
}

TEST_F(WeightReceiverTest, RefusesDigestsThatAreNotTheVersions) {
  Prepare prepare = rig_.Offer();
  ASSERT_TRUE(rig_.receiver()->receiver->Prepare(prepare).ok());
  Transfer transfer = rig_.TransferFor(rig_.receiver(), prepare, "source-0");
  transfer.bucket_digests[0] ^= 1;
  EXPECT_THAT(rig_.receiver()->receiver->Transfer(transfer).status(), HasReason("DIGEST_MISMATCH"));
  EXPECT_EQ(rig_.store()->chunks(), 0);
}

TEST_F(WeightReceiverTest, ChecksForNonFiniteWeightsItself) {
  // The source's own check failed to detect the bad values: the digests agree.
  Manifest manifest = SmallModel();
  std::vector<char> arena(manifest.arena_bytes(), 0);
  uint32_t infinity = 0x7f800000;
  std::memcpy(arena.data(), &infinity, 4);
  rig_.store()->SetOnChunk([&arena](int, ByteRange range, char* bytes) {
    std::memcpy(bytes, arena.data() + range.begin, range.size());
    return absl::OkStatus();
  });
  std::vector<uint64_t> digests = DigestBuckets(manifest, arena.data());
  Prepare prepare = rig_.Offer();
  prepare.digest = CombineDigests(digests);
  ASSERT_TRUE(rig_.receiver()->receiver->Prepare(prepare).ok());
  Transfer transfer = rig_.TransferFor(rig_.receiver(), prepare, "source-0");
  transfer.bucket_digests = digests;
  EXPECT_THAT(rig_.receiver()->receiver->Transfer(transfer).status(), HasReason("NON_FINITE"));
}

// A shadow whose memory belongs to somebody else between attempts (sync.install: borrowed). Whoever writes to it then
// damages what is there.
class BorrowingTarget final : public WeightTarget {
 public:
  explicit BorrowingTarget(int64_t bytes) : memory_{HostBuffer(bytes), HostBuffer(bytes)}, bytes_(bytes) { Own(); }

  absl::Status BeginAttempt() override {
    ++attempts;
    return absl::OkStatus();
  }
  void EndAttempt() override {
    if (--attempts == 0) Return();
  }
  absl::StatusOr<bool> TakeShadow(absl::Duration) override {
    SYNCOPATE_RETURN_IF_ERROR(take_status);
    if (lent) return false;
    CheckOwned();
    lent = true;
    ++lendings;
    std::memset(memory_[1 - live_].data(), 0xee, static_cast<size_t>(bytes_));
    return true;
  }
  char* shadow() override {
    EXPECT_TRUE(lent) << "the shadow is used without its memory";
    return memory_[1 - live_].data();
  }
  absl::StatusOr<InstallResult> Install(const PolicyVersion& version, uint64_t, absl::Duration) override {
    EXPECT_TRUE(lent);
    SYNCOPATE_RETURN_IF_ERROR(install_status);
    live_ = 1 - live_;
    serving = version;
    Return();
    return InstallResult();
  }
  absl::StatusOr<InstallResult> Relabel(const PolicyVersion& version, absl::Duration) override {
    serving = version;
    return InstallResult();
  }
  bool can_copy_live() const override { return true; }
  absl::Status CopyLive(const std::vector<ByteRange>& ranges) override {
    for (const ByteRange& range : ranges) {
      std::memcpy(shadow() + range.begin, live() + range.begin, static_cast<size_t>(range.size()));
    }
    return absl::OkStatus();
  }
  const char* live() { return memory_[live_].data(); }
  // What the owner has written since the latest lending is still there.
  void CheckOwned() {
    const char* const mine = memory_[1 - live_].data();
    EXPECT_TRUE(std::all_of(mine, mine + bytes_, [](char byte) { return byte == kOwners; })) << "it was written to";
  }

  int attempts = 0;
  bool lent = false;
  int lendings = 0;
  PolicyVersion serving;
  absl::Status take_status, install_status;

 private:
  static constexpr char kOwners = 0x55;
  void Own() { std::memset(memory_[1 - live_].data(), kOwners, static_cast<size_t>(bytes_)); }
  void Return() {
    if (std::exchange(lent, false)) Own();
  }

  std::array<HostBuffer, 2> memory_;
  const int64_t bytes_;
  int live_ = 0;
};

class BorrowedShadowTest : public WeightReceiverTest {
 protected:
  enum class Cut { kNever, kPrepared, kInTransfer, kVerified, kInstall, kStream };

  // One attempt, which ends at `cut` as it does when a member, or the stream to the synchronizer, is lost.
  absl::Status Sync(const Prepare& prepare, Cut cut = Cut::kNever) {
    SYNCOPATE_ASSIGN_OR_RETURN(std::string rendezvous, rig_.source()->Prepare(prepare));
    const absl::Status status = Receive(prepare, rendezvous, cut);
    receiver_.Finish(prepare.attempt);
    rig_.source()->Finish(prepare.attempt);
    EXPECT_FALSE(target_.lent) << "an attempt that is over has given the memory back";
    EXPECT_EQ(target_.attempts, 0);
    target_.CheckOwned();
    return status;
  }
  absl::Status Receive(const Prepare& prepare, const std::string& rendezvous, Cut cut) {
    SYNCOPATE_ASSIGN_OR_RETURN(const WeightReceiver::Prepared prepared, receiver_.Prepare(prepare));
    EXPECT_EQ(target_.lent, !prepared.already_serves);
    if (cut == Cut::kPrepared) receiver_.Finish(prepare.attempt);
    if (cut == Cut::kStream) receiver_.FinishAny();
    if (!prepared.already_serves) {
      Transfer transfer = rig_.TransferFor(rig_.receiver(), prepare, rendezvous);
      transfer.receivers[0].id = id_;
      rig_.store()->SetOnChunk([&](int, ByteRange, char*) -> absl::Status {
        if (cut != Cut::kInTransfer) return absl::OkStatus();
        return Error(absl::StatusCode::kUnavailable, "PEER_LOST", "it died");
      });
      SYNCOPATE_RETURN_IF_ERROR(receiver_.Transfer(transfer).status());
    }
    if (cut == Cut::kVerified) receiver_.Finish(prepare.attempt);
    target_.install_status = cut == Cut::kInstall
                                 ? Error(absl::StatusCode::kDeadlineExceeded, "INSTALL_DEADLINE", "an evaluation runs")
                                 : absl::OkStatus();
    const absl::Status installed = receiver_.Install({prepare.attempt}).status();
    if (installed.ok()) receiver_.WorkAfterReport();
    EXPECT_TRUE(!installed.ok() || !target_.lent) << "the older weights are of no more use";
    return installed;
  }
  std::string LiveBytes() { return {target_.live(), static_cast<size_t>(SmallModel().arena_bytes())}; }

  const MemberId id_ = RollouterId(7, "r");
  BorrowingTarget target_{SmallModel().arena_bytes()};
  WeightReceiver receiver_{{SmallModel(), id_}, &target_, {harness_.receiver()}};
};

TEST_F(BorrowedShadowTest, ASyncTakesTheMemoryAndGivesItBackWithTheInstall) {
  ASSERT_TRUE(Sync(rig_.Offer()).ok());
  EXPECT_EQ(target_.serving, (PolicyVersion{1, 1}));
  rig_.Stage(2);
  ASSERT_TRUE(Sync(rig_.Offer()).ok());
  EXPECT_EQ(receiver_.serving(), (PolicyVersion{1, 2}));
  EXPECT_EQ(target_.lendings, 2);
}

TEST_F(BorrowedShadowTest, ARelabelTakesNoMemoryAndACheckOfTheWeightsDoes) {
  ASSERT_TRUE(Sync(rig_.Offer()).ok());
  Prepare prepare = rig_.Offer();
  prepare.version = {2, 0};
  ASSERT_TRUE(Receive(prepare, /*rendezvous=*/"", Cut::kNever).ok());
  receiver_.Finish(prepare.attempt);
  EXPECT_EQ(target_.lendings, 1);
  EXPECT_EQ(target_.serving, (PolicyVersion{2, 0}));
  prepare = rig_.Offer();
  prepare.version = {2, 0};
  prepare.check_weights = true;
  ASSERT_TRUE(receiver_.Prepare(prepare).ok());
  EXPECT_EQ(target_.lendings, 2) << "the copy that is digested";
  receiver_.Finish(prepare.attempt);
  EXPECT_FALSE(target_.lent);
}

TEST_F(BorrowedShadowTest, AShadowThatIsNotLentRefusesTheAttemptAndTheNextOneIsWhole) {
  ASSERT_TRUE(Sync(rig_.Offer()).ok());
  rig_.Stage(2);
  target_.take_status = Error(absl::StatusCode::kUnavailable, "NO_SHADOW", "a step takes long");
  EXPECT_THAT(Sync(rig_.Offer()), HasReason("NO_SHADOW"));
  EXPECT_EQ(receiver_.serving(), (PolicyVersion{1, 1}));
  target_.take_status = absl::OkStatus();
  ASSERT_TRUE(Sync(rig_.Offer()).ok());
  EXPECT_EQ(receiver_.serving(), (PolicyVersion{1, 2}));
}

// Attempts that end in every phase, in random order: the memory is always back, the version that serves is never
// touched, and each attempt that is not cut brings the newest one.
TEST_F(BorrowedShadowTest, AttemptsThatEndInAnyPhaseGiveTheMemoryBackAndLeaveTheWeightsWhole) {
  constexpr Cut kCuts[] = {Cut::kNever, Cut::kPrepared, Cut::kInTransfer, Cut::kVerified, Cut::kInstall, Cut::kStream};
  std::mt19937_64 random(11);
  int64_t step = 1;
  std::map<Cut, int> seen;
  ASSERT_TRUE(Sync(rig_.Offer()).ok());
  for (int attempt = 0; attempt < 300; ++attempt) {
    const Cut cut = kCuts[random() % std::size(kCuts)];
    if (random() % 2 == 0 || receiver_.serving().step == step) rig_.Stage(++step);
    const PolicyVersion before = receiver_.serving();
    const std::string live = LiveBytes();
    const absl::Status status = Sync(rig_.Offer(), cut);
    ++seen[cut];
    EXPECT_EQ(status.ok(), cut == Cut::kNever) << status;
    EXPECT_EQ(receiver_.serving(), cut == Cut::kNever ? (PolicyVersion{1, step}) : before);
    EXPECT_EQ(LiveBytes() == live, cut != Cut::kNever);
  }
  for (const Cut cut : kCuts) EXPECT_GT(seen[cut], 20);
}

// One weight set: received bytes overwrite the weights that serve.
class InPlaceTarget final : public WeightTarget {
 public:
  explicit InPlaceTarget(int64_t bytes) : buffer(bytes) {}
  char* shadow() override { return buffer.data(); }
  bool in_place() const override { return true; }
  absl::Status BeginInPlace(const PolicyVersion&, absl::Duration) override {
    if (on_begin) on_begin();
    paused = begin_status.ok();
    return begin_status;
  }
  absl::StatusOr<InstallResult> Install(const PolicyVersion& version, uint64_t, absl::Duration) override {
    SYNCOPATE_RETURN_IF_ERROR(install_status);
    paused = false;
    valid = true;
    serving = version;
    return InstallResult{0.5};
  }
  absl::StatusOr<InstallResult> Relabel(const PolicyVersion& version, absl::Duration) override {
    serving = version;
    return InstallResult();
  }
  void CancelInPlace() override { paused = false; }
  void Invalidate() override { valid = false; }

  HostBuffer buffer;
  bool paused = false;
  bool valid = false;
  PolicyVersion serving;
  std::function<void()> on_begin;
  absl::Status begin_status;
  absl::Status install_status;
};

class InPlaceTest : public WeightReceiverTest {
 protected:
  InPlaceTest() : WeightReceiverTest(/*slots=*/1) {}  // a newer version replaces the older one

  absl::Status Sync(const Prepare& prepare) {
    SYNCOPATE_ASSIGN_OR_RETURN(std::string rendezvous, rig_.source()->Prepare(prepare));
    SYNCOPATE_RETURN_IF_ERROR(receiver_.Prepare(prepare).status());
    Transfer transfer = rig_.TransferFor(rig_.receiver(), prepare, rendezvous);
    if (after_prepare_) std::exchange(after_prepare_, nullptr)();
    transfer.receivers[0].id = id_;
    absl::Status status = receiver_.Transfer(transfer).status();
    if (status.ok() && install_) status = receiver_.Install({prepare.attempt}).status();
    receiver_.Finish(prepare.attempt);
    rig_.source()->Finish(prepare.attempt);
    return status;
  }
  void Break(bool broken) {
    rig_.store()->SetOnChunk([broken](int, ByteRange, char*) {
      return broken ? Error(absl::StatusCode::kUnavailable, "PEER_LOST", "it died") : absl::OkStatus();
    });
  }

  const MemberId id_ = RollouterId(7, "r");
  InPlaceTarget target_{SmallModel().arena_bytes()};
  WeightReceiver receiver_{{SmallModel(), id_}, &target_, {harness_.receiver()}};
  bool install_ = true;
  std::function<void()> after_prepare_;
};

TEST_F(InPlaceTest, GenerationStandsStillForTheTransferAndGoesOnWithTheInstall) {
  ASSERT_TRUE(Sync(rig_.Offer()).ok());
  EXPECT_TRUE(target_.valid);
  EXPECT_FALSE(target_.paused);
  EXPECT_EQ(receiver_.serving(), (PolicyVersion{1, 1}));
}

TEST_F(InPlaceTest, ATransferThatFailsLeavesNothingServingUntilAGoodOne) {
  ASSERT_TRUE(Sync(rig_.Offer()).ok());
  rig_.Stage(2);
  Break(true);
  EXPECT_THAT(Sync(rig_.Offer()), HasReason("PEER_LOST"));
  EXPECT_FALSE(target_.valid);
  EXPECT_TRUE(receiver_.serving().IsNone());
  EXPECT_EQ(receiver_.serving_digest(), 0u) << "a receiver without weights cannot be relabelled";
  Prepare older = rig_.Offer();
  older.version = {1, 0};
  EXPECT_THAT(receiver_.Prepare(older).status(), HasReason("OLD_VERSION")) << "versions never decrease";
  Break(false);
  ASSERT_TRUE(Sync(rig_.Offer()).ok());
  EXPECT_TRUE(target_.valid);
  EXPECT_EQ(receiver_.serving(), (PolicyVersion{1, 2}));
}

TEST_F(InPlaceTest, GenerationDoesNotStopForAVersionThatIsGone) {
  ASSERT_TRUE(Sync(rig_.Offer()).ok());
  rig_.Stage(2);
  const Prepare gone = rig_.Offer();
  bool asked = false;
  target_.on_begin = [&asked] { asked = true; };
  after_prepare_ = [this] { rig_.Stage(3); };
  EXPECT_THAT(Sync(gone), HasReason("VERSION_NOT_STAGED"));
  EXPECT_FALSE(asked);
  EXPECT_EQ(receiver_.serving(), (PolicyVersion{1, 1}));
}

TEST_F(InPlaceTest, GenerationGoesOnIfTheVersionIsLostWhileItStops) {
  ASSERT_TRUE(Sync(rig_.Offer()).ok());
  rig_.Stage(2);
  target_.on_begin = [this] { rig_.Stage(3); };
  EXPECT_THAT(Sync(rig_.Offer()), HasReason("VERSION_NOT_STAGED"));
  EXPECT_TRUE(target_.valid);
  EXPECT_FALSE(target_.paused);
  EXPECT_EQ(receiver_.serving(), (PolicyVersion{1, 1})) << "not a byte was written";
  target_.on_begin = nullptr;
  ASSERT_TRUE(Sync(rig_.Offer()).ok());
  EXPECT_EQ(receiver_.serving(), (PolicyVersion{1, 3}));
}

TEST_F(InPlaceTest, AnEngineThatTakesLongToStopIsAskedAgainForAsLongAsTheVersionIsThere) {
  ASSERT_TRUE(Sync(rig_.Offer()).ok());
  rig_.Stage(2);
  int asked = 0;
  target_.begin_status = Error(absl::StatusCode::kDeadlineExceeded, "INSTALL_DEADLINE", "an evaluation runs");
  target_.on_begin = [this, &asked] {
    if (++asked == 3) target_.begin_status = absl::OkStatus();
  };
  ASSERT_TRUE(Sync(rig_.Offer()).ok());
  EXPECT_EQ(asked, 3);
  rig_.Stage(3);
  target_.begin_status = Error(absl::StatusCode::kDeadlineExceeded, "INSTALL_DEADLINE", "an evaluation runs");
  target_.on_begin = [this, &asked] {
    if (++asked == 5) rig_.Stage(4);
  };
  EXPECT_THAT(Sync(rig_.Offer()), HasReason("VERSION_NOT_STAGED"));
  EXPECT_EQ(asked, 5);
  EXPECT_EQ(receiver_.serving(), (PolicyVersion{1, 2}));
}

TEST_F(InPlaceTest, AnEngineThatTakesLongToStopDoesNotHoldUpTheEndOfTheAttempt) {
  ASSERT_TRUE(Sync(rig_.Offer()).ok());
  rig_.Stage(2);
  const Prepare prepare = rig_.Offer();
  target_.begin_status = Error(absl::StatusCode::kDeadlineExceeded, "INSTALL_DEADLINE", "an evaluation runs");
  target_.on_begin = [this, &prepare] { receiver_.Finish(prepare.attempt); };
  EXPECT_THAT(Sync(prepare), HasReason("CANCELLED"));
  EXPECT_EQ(receiver_.serving(), (PolicyVersion{1, 1}));
}

TEST_F(InPlaceTest, AnAttemptThatIsFinishedBetweenTransferAndInstallLeavesNothingServing) {
  install_ = false;
  ASSERT_TRUE(Sync(rig_.Offer()).ok());
  EXPECT_TRUE(target_.paused);
  EXPECT_FALSE(target_.valid);
  EXPECT_TRUE(receiver_.serving().IsNone());
}

TEST_F(InPlaceTest, AnInstallThatFailsLeavesNothingServing) {
  target_.install_status = Error(absl::StatusCode::kDeadlineExceeded, "INSTALL_DEADLINE", "too late");
  EXPECT_THAT(Sync(rig_.Offer()), HasReason("INSTALL_DEADLINE"));
  EXPECT_FALSE(target_.valid);
}

TEST_F(InPlaceTest, AnEngineThatCannotStopKeepsItsWeights) {
  ASSERT_TRUE(Sync(rig_.Offer()).ok());
  rig_.Stage(2);
  target_.begin_status = Error(absl::StatusCode::kDeadlineExceeded, "PAUSE_DEADLINE", "a step takes too long");
  int chunks = rig_.store()->chunks();
  EXPECT_THAT(Sync(rig_.Offer(absl::Milliseconds(100))), HasReason("PAUSE_DEADLINE"));
  EXPECT_EQ(rig_.store()->chunks(), chunks) << "nothing was overwritten";
  EXPECT_TRUE(target_.valid);
  EXPECT_EQ(receiver_.serving(), (PolicyVersion{1, 1}));
}

// A target whose live weights and shadow share one base: the shadow is [base | adapters], and what is live has adapters
// of its own.
class SharedBaseTarget final : public WeightTarget {
 public:
  SharedBaseTarget(int64_t base, int64_t bytes)
      : base_(base), bytes_(bytes), arena(bytes), live_adapters(bytes - base) {}

  char* shadow() override { return arena.data(); }
  bool shares_base() const override { return true; }
  bool can_copy_live() const override { return true; }
  absl::Status CopyLive(const std::vector<ByteRange>&) override {
    std::memcpy(arena.data() + base_, live_adapters.data(), static_cast<size_t>(bytes_ - base_));
    return absl::OkStatus();
  }
  absl::Status BeginInPlace(const PolicyVersion&, absl::Duration) override {
    ++pauses;
    return absl::OkStatus();
  }
  absl::StatusOr<InstallResult> Install(const PolicyVersion& version, uint64_t, absl::Duration) override {
    std::memcpy(live_adapters.data(), arena.data() + base_, static_cast<size_t>(bytes_ - base_));
    serving = version;
    sleep.slept = false;
    return InstallResult();
  }
  absl::StatusOr<InstallResult> Relabel(const PolicyVersion& version, absl::Duration) override {
    serving = version;
    return InstallResult();
  }
  ReceiverWeights LastSleep() const override { return sleep; }
  void CancelInPlace() override { ++cancels; }
  void Invalidate() override { serving = PolicyVersion(); }
  bool maps_base() const override { return maps; }
  absl::Status MapBase(LentMemory memory) override {
    SYNCOPATE_RETURN_IF_ERROR(map_error);
    ++mapped;
    void* const lent = mmap(nullptr, static_cast<size_t>(base_), PROT_READ, MAP_SHARED, memory.handles[0].get(), 0);
    std::memcpy(arena.data(), lent, static_cast<size_t>(base_));
    munmap(lent, static_cast<size_t>(base_));
    return absl::OkStatus();
  }
  absl::Status OwnBase() override {
    ++owned;
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<ShadowCheck>> BeginCheck(ShadowContents contents) override {
    checked = 0;
    for (const ByteRange& range : contents.buckets) checked += range.size();
    return WeightTarget::BeginCheck(std::move(contents));
  }

 private:
  const int64_t base_, bytes_;

 public:
  HostBuffer arena, live_adapters;
  PolicyVersion serving;
  ReceiverWeights sleep;
  int64_t checked = 0;  // bytes that the latest check has digested, or would have
  int pauses = 0, cancels = 0;
  bool maps = false;
  absl::Status map_error;
  int mapped = 0, owned = 0;
};

class SharedBaseTest : public ::testing::Test {
 protected:
  static Manifest AdaptedModel() {
    TensorSpec a{.name = "a", .shape = {40, 10}, .unit = 1, .adapter = true}, b = a;
    b.name = "b";
    return Manifest::Create({{.name = "base", .shape = {100, 30}}, {.name = "norm", .shape = {30}}, a, b}, 1024)
        .value();
  }
  SharedBaseTest() { Stage(1); }
  void Stage(int64_t step) { rig_.StageAdapters(step, subset_); }

  absl::StatusOr<WeightReceiver::Received> Sync(const std::function<void(Transfer&)>& change = nullptr,
                                                bool check_weights = false) {
    Prepare prepare = rig_.Offer();
    prepare.check_weights = check_weights;
    SYNCOPATE_ASSIGN_OR_RETURN(std::string rendezvous, rig_.source()->Prepare(prepare));
    auto prepared = receiver_.Prepare(prepare);
    absl::StatusOr<WeightReceiver::Received> received = WeightReceiver::Received();
    if (!prepared.ok()) {
      received = prepared.status();
    } else if (!prepared->already_serves) {
      Transfer transfer = rig_.TransferFor(rig_.receiver(), prepare, rendezvous);
      transfer.receivers[0].id = id_;
      transfer.receivers[0].base = NeedsBase(prepared->weights);
      if (change) change(transfer);
      received = receiver_.Transfer(transfer);
    }
    if (received.ok()) {
      const auto installed = receiver_.Install({prepare.attempt});
      if (!installed.ok()) received = installed.status();
    }
    receiver_.Finish(prepare.attempt);
    rig_.source()->Finish(prepare.attempt);
    return received;
  }
  // Whether the target has the bits of `step`.
  bool HasBits(int64_t step) {
    std::vector<char> expected(static_cast<size_t>(manifest_.arena_bytes()), 0);
    EXPECT_TRUE(FillAdapters(manifest_, subset_.base_digest, subset_.adapters, step, expected.data()).ok());
    const auto base = static_cast<size_t>(manifest_.adapters_begin());
    return std::memcmp(expected.data(), target_.arena.data(), base) == 0 &&
           std::memcmp(expected.data() + base, target_.live_adapters.data(), expected.size() - base) == 0;
  }
  void Break(bool broken) {
    rig_.store()->SetOnChunk([broken](int, ByteRange, char*) {
      return broken ? Error(absl::StatusCode::kUnavailable, "PEER_LOST", "it died") : absl::OkStatus();
    });
  }

  const Manifest manifest_ = AdaptedModel();
  Subset subset_{{{2, 4}}, 99};
  InprocHarness harness_;
  SyncRig rig_{&harness_, manifest_};
  const MemberId id_ = RollouterId(7, "r");
  int damaged_ = 0;
  SharedBaseTarget target_{manifest_.adapters_begin(), manifest_.arena_bytes()};
  // What a lender answers.
  std::function<absl::StatusOr<LentMemory>()> lender_ = nullptr;
  WeightReceiver receiver_{{.manifest = manifest_,
                            .member = id_,
                            .on_damaged = [this](const absl::Status&) { ++damaged_; },
                            .borrow_base = [this](const std::string& rendezvous, absl::Time,
                                                  const std::stop_token&) -> absl::StatusOr<LentMemory> {
                              EXPECT_EQ(rendezvous, "the lender");
                              return lender_();
                            }},
                           &target_,
                           {harness_.receiver()}};
};

// A target that maps the base, and a source that lends it.
class MappedBaseTest : public SharedBaseTest {
 protected:
  MappedBaseTest() {
    target_.maps = true;
    std::vector<char> weights(static_cast<size_t>(manifest_.arena_bytes()), 0);
    EXPECT_TRUE(FillAdapters(manifest_, subset_.base_digest, subset_.adapters, 1, weights.data()).ok());
    std::memcpy(base_.range(0), weights.data(), static_cast<size_t>(manifest_.adapters_begin()));
    lender_ = [this]() -> absl::StatusOr<LentMemory> {
      ++asked_;
      SYNCOPATE_ASSIGN_OR_RETURN(const SharedMemory lent, base_.Lend());
      LentMemory received{lent->info, {}};
      received.handles.emplace_back(dup(lent->handles.front().get()));
      return received;
    };
  }
  absl::StatusOr<WeightReceiver::Received> SyncFromLender() {
    return Sync([](Transfer& transfer) { transfer.sources[0].base_rendezvous = "the lender"; });
  }
  int64_t BaseBytes() const { return manifest_.ranges()[1].end; }

  int asked_ = 0;
  SharedBaseMemory base_{1, {.base = manifest_.adapters_begin(), .range = manifest_.arena_bytes()}};
};

TEST_F(MappedBaseTest, ABaseThatIsLentIsMappedAndVerifiedAndNotSent) {
  auto received = SyncFromLender();
  ASSERT_TRUE(received.ok()) << received.status();
  EXPECT_EQ(received->bytes.full, 0);
  EXPECT_EQ(received->bytes.lora, 3200);
  EXPECT_GE(received->bytes.mapped, BaseBytes());
  EXPECT_LT(received->bytes.mapped, BaseBytes() + Manifest::kAlignment);
  EXPECT_EQ(received->bytes_by_source, std::vector<int64_t>{received->bytes.total()});
  EXPECT_EQ(target_.mapped, 1);
  EXPECT_EQ(target_.pauses, 1) << "nothing may compute with a base that is exchanged";
  EXPECT_GE(target_.checked, BaseBytes() + 3200) << "what is mapped is digested as what arrives";
  EXPECT_TRUE(HasBits(1));
  EXPECT_EQ(receiver_.base_digest(), 99u);
  Stage(2);
  received = SyncFromLender();
  ASSERT_TRUE(received.ok()) << received.status();
  EXPECT_EQ(received->bytes, (PayloadBytes{.full = 0, .lora = 3200}));
  EXPECT_EQ(asked_, 1) << "it has the base";
  EXPECT_TRUE(HasBits(2));
}

TEST_F(MappedBaseTest, AfterEachDeepSleepTheBaseIsMappedAgain) {
  for (int64_t step = 1; step < 5; ++step) {
    if (step > 1) Stage(step);
    std::memset(target_.arena.data(), 0, static_cast<size_t>(manifest_.adapters_begin()));
    const auto received = SyncFromLender();
    ASSERT_TRUE(received.ok()) << received.status();
    EXPECT_EQ(received->bytes.full, 0);
    EXPECT_GE(received->bytes.mapped, BaseBytes());
    EXPECT_TRUE(HasBits(step));
    target_.sleep = AfterSleep(target_.sleep, 2);
  }
  EXPECT_EQ(target_.mapped, 4);
  EXPECT_EQ(target_.owned, 0);
}

TEST_F(MappedBaseTest, WhatCannotBeBorrowedIsSentInTheSameAttempt) {
  const auto good = lender_;
  lender_ = []() -> absl::StatusOr<LentMemory> {
    return Error(absl::StatusCode::kUnavailable, "PEER_LOST", "nobody answers");
  };
  auto received = SyncFromLender();
  ASSERT_TRUE(received.ok()) << received.status();
  EXPECT_GE(received->bytes.full, BaseBytes());
  EXPECT_EQ(received->bytes.mapped, 0);
  EXPECT_EQ(target_.owned, 1) << "so that the base can be written";
  EXPECT_TRUE(HasBits(1));
  target_.sleep = AfterSleep(target_.sleep, 2);
  lender_ = good;
  Stage(2);
  received = SyncFromLender();
  ASSERT_TRUE(received.ok()) << received.status();
  EXPECT_GE(received->bytes.mapped, BaseBytes()) << "the lender answers again";
}

TEST_F(MappedBaseTest, MemoryThatCannotBeMappedFailsOneAttemptThenTheBaseIsSentAndTheNextOneIsMapped) {
  target_.map_error = Error(absl::StatusCode::kFailedPrecondition, "BASE_UNMAPPABLE", "of another size");
  EXPECT_THAT(SyncFromLender().status(), HasReason("BASE_UNMAPPABLE"));
  EXPECT_TRUE(receiver_.serving().IsNone());
  auto received = SyncFromLender();
  ASSERT_TRUE(received.ok()) << received.status();
  EXPECT_GE(received->bytes.full, BaseBytes());
  EXPECT_EQ(target_.owned, 1);
  EXPECT_TRUE(HasBits(1));
  target_.map_error = absl::OkStatus();
  target_.sleep = AfterSleep(target_.sleep, 2);
  Stage(2);
  received = SyncFromLender();
  ASSERT_TRUE(received.ok()) << received.status();
  EXPECT_GE(received->bytes.mapped, BaseBytes());
}

TEST_F(MappedBaseTest, ALentBaseWithOtherBitsIsNotTaken) {
  base_.range(0)[40] ^= 1;
  EXPECT_THAT(SyncFromLender().status(), HasReason("DIGEST_MISMATCH"));
  EXPECT_TRUE(receiver_.serving().IsNone());
  EXPECT_EQ(receiver_.base_digest(), 0u);
}

TEST_F(MappedBaseTest, OfSeveralSourcesNoneIsAskedAsEachHasAPart) {
  const auto received = Sync([](Transfer& transfer) {
    transfer.sources[0].base_rendezvous = "the lender";
    transfer.sources.push_back(transfer.sources[0]);
  });
  ASSERT_TRUE(received.ok()) << received.status();
  EXPECT_EQ(asked_, 0);
  EXPECT_GE(received->bytes.full, BaseBytes());
}

TEST_F(SharedBaseTest, TheBaseIsReceivedInPlaceOnceAndAnAdapterSyncNeitherStopsNorReadsIt) {
  auto received = Sync();
  ASSERT_TRUE(received.ok()) << received.status();
  EXPECT_EQ(target_.pauses, 1) << "what computes with the base stands still while it arrives";
  EXPECT_GT(received->bytes.full, 0);
  EXPECT_TRUE(HasBits(1));
  EXPECT_EQ(receiver_.base_digest(), 99u);
  for (int64_t step = 2; step < 5; ++step) {
    Stage(step);
    received = Sync();
    ASSERT_TRUE(received.ok()) << received.status();
    EXPECT_EQ(received->bytes, (PayloadBytes{.full = 0, .lora = 3200}));
    EXPECT_EQ(target_.pauses, 1);
    EXPECT_EQ(target_.checked, manifest_.arena_bytes() - manifest_.adapters_begin());
    EXPECT_TRUE(HasBits(step));
    EXPECT_EQ(receiver_.base_digest(), 99u);
  }
}

TEST_F(SharedBaseTest, ABaseThatHasChangedInMemoryIsFoundWhenTheWeightsAreChecked) {
  ASSERT_TRUE(Sync().ok());
  Stage(2);
  ASSERT_TRUE(Sync().ok());
  EXPECT_TRUE(Sync(nullptr, /*check_weights=*/true).ok());
  EXPECT_EQ(damaged_, 0);
  EXPECT_TRUE(HasBits(2));
  target_.arena.data()[500] ^= 1;
  Stage(3);
  ASSERT_TRUE(Sync().ok()) << "a sync of adapters does not read the base";
  EXPECT_EQ(ErrorReason(Sync(nullptr, /*check_weights=*/true).status()), "WEIGHTS_DAMAGED");
  EXPECT_EQ(damaged_, 1);
  EXPECT_EQ(receiver_.base_digest(), 0u);
}

TEST_F(SharedBaseTest, AfterALightSleepTheBaseIsDigested) {
  ASSERT_TRUE(Sync().ok());
  target_.sleep = AfterSleep(target_.sleep, 1);
  Stage(2);
  Break(true);
  EXPECT_EQ(ErrorReason(Sync().status()), "PEER_LOST");
  EXPECT_EQ(target_.checked, manifest_.arena_bytes() - manifest_.adapters_begin()) << "by the transfer";
  Break(false);
  ASSERT_TRUE(Sync().ok());
  EXPECT_EQ(target_.pauses, 1);
  EXPECT_TRUE(HasBits(2));

  target_.sleep = AfterSleep(target_.sleep, 1);
  target_.arena.data()[500] ^= 1;  // on the host
  Stage(3);
  EXPECT_EQ(ErrorReason(Sync().status()), "WEIGHTS_DAMAGED");
  EXPECT_EQ(damaged_, 1);
}

TEST_F(SharedBaseTest, WhatADeepSleepHasDroppedIsSentAgain) {
  ASSERT_TRUE(Sync().ok());
  target_.sleep = AfterSleep(target_.sleep, 2);
  std::memset(target_.arena.data(), 0, static_cast<size_t>(manifest_.arena_bytes()));
  Stage(2);
  const auto received = Sync();
  ASSERT_TRUE(received.ok()) << received.status();
  EXPECT_GT(received->bytes.full, 0);
  EXPECT_EQ(target_.pauses, 2);
  EXPECT_TRUE(HasBits(2));
}

TEST_F(SharedBaseTest, AdaptersThatArriveDamagedCostNoBaseAndAVersionOfAnotherBaseDoes) {
  ASSERT_TRUE(Sync().ok());
  Stage(2);
  rig_.store()->SetOnChunk([](int, ByteRange, char* bytes) {
    bytes[0] ^= 1;
    return absl::OkStatus();
  });
  EXPECT_EQ(ErrorReason(Sync().status()), "DIGEST_MISMATCH");
  EXPECT_EQ(receiver_.serving(), (PolicyVersion{1, 1}));
  EXPECT_TRUE(HasBits(1)) << "what serves was not touched";
  EXPECT_EQ(receiver_.base_digest(), 99u);
  rig_.store()->SetOnChunk([](int, ByteRange, char*) { return absl::OkStatus(); });
  ASSERT_TRUE(Sync().ok());
  EXPECT_TRUE(HasBits(2));

  // The next version's base is another one under the same name.
  subset_.base_digest = 100;
  Stage(3);
  const auto kept = Sync([](Transfer& transfer) { transfer.receivers[0].base = false; });
  EXPECT_EQ(ErrorReason(kept.status()), "DIGEST_MISMATCH");
  EXPECT_EQ(receiver_.base_digest(), 0u) << "it is sent the base";
  ASSERT_TRUE(Sync().ok());
  EXPECT_EQ(target_.pauses, 2);
  EXPECT_TRUE(HasBits(3));
}

TEST_F(SharedBaseTest, ABaseThatStopsInTheMiddleLeavesNothingServing) {
  ASSERT_TRUE(Sync().ok());
  subset_.base_digest = 100;
  Stage(2);
  Break(true);
  EXPECT_EQ(ErrorReason(Sync().status()), "PEER_LOST");
  EXPECT_TRUE(receiver_.serving().IsNone());
  EXPECT_TRUE(target_.serving.IsNone());
  EXPECT_EQ(receiver_.base_digest(), 0u);
  Break(false);
  ASSERT_TRUE(Sync().ok());
  EXPECT_TRUE(HasBits(2));
}

// Digests belong to the buckets of a plan: another number of trainer ranks has another plan.
TEST_F(SharedBaseTest, ABaseThatWasVerifiedByAnotherPlanIsSentAgainOnce) {
  ASSERT_TRUE(Sync().ok());
  Stage(2);
  for (int32_t sources = 2; sources <= 6; ++sources) {  // more plans than a receiver keeps
    Prepare prepare = rig_.Offer();
    prepare.sources = sources;
    prepare.plan_hash =
        SyncPlan::Create(manifest_, Layout::FlatShards(manifest_, sources), Layout::Whole(manifest_, 1))->hash();
    const auto prepared = receiver_.Prepare(prepare);
    ASSERT_TRUE(prepared.ok()) << prepared.status();
    receiver_.Finish(prepare.attempt);
  }
  EXPECT_EQ(ErrorReason(Sync().status()), "BASE_LACKING");
  EXPECT_EQ(receiver_.base_digest(), 0u) << "the next attempt sends it";
  const auto received = Sync();
  ASSERT_TRUE(received.ok()) << received.status();
  EXPECT_GT(received->bytes.full, 0);
  EXPECT_TRUE(HasBits(2));
}

TEST_F(SharedBaseTest, VersionsThatDifferInMoreOrLessThanTheAdaptersAreRefused) {
  ASSERT_TRUE(Sync().ok());
  int64_t step = 1;
  for (const TensorRange& range : {TensorRange{1, 4}, TensorRange{3, 4}}) {
    subset_.adapters = {range};
    Stage(++step);
    EXPECT_EQ(ErrorReason(Sync().status()), "MODEL_MISMATCH");
  }
  EXPECT_EQ(receiver_.serving(), (PolicyVersion{1, 1}));
}

}  // namespace
}  // namespace syncopate::synchronizer
