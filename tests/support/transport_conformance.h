#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "synchronizer/plan/layout.h"
#include "synchronizer/transport/send_arena.h"
#include "synchronizer/transport/transport.h"
#include "tests/support/faulty_store.h"
#include "tests/support/sync_rig.h"
#include "tests/support/synchronizer_fixtures.h"
#include "tests/support/transport_harness.h"
#include "tests/support/transport_shapes.h"

// The tests that every transport must pass. A test program defines a TransportHarness and contains
//   INSTANTIATE_TEST_SUITE_P(Inproc, TransportConformanceTest, ::testing::Values(&MakeInprocHarness));
//   INSTANTIATE_TEST_SUITE_P(Inproc, TransportShapesTest, ::testing::Values(&MakeInprocHarness));
// The first of these suites accesses a source's host memory while it is read. The second (transport_shapes.h) accesses
// memory only through the harness, so it suits all transports.
namespace syncopate::synchronizer {

class TransportConformanceTest : public ::testing::TestWithParam<HarnessFactory> {
 protected:
  // The weights are several chunks long, with tensors that straddle the chunks.
  static Manifest LargeModel() {
    auto manifest = Manifest::Create({{"embed", DType::kFloat32, {1000, 301}},
                                      {"mid", DType::kBFloat16, {700, 1001}},
                                      {"norm", DType::kFloat32, {3}},
                                      {"head", DType::kFloat32, {1000, 303}}},
                                     1 << 19);
    SYNCOPATE_CHECK(manifest.ok() && manifest->arena_bytes() > 3 * kChunkBytes);
    return *std::move(manifest);
  }

  std::unique_ptr<TransportHarness> harness_ = GetParam()();
};

TEST_P(TransportConformanceTest, BringsEveryBitOfManyModels) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<TensorSpec> tensors;
    for (uint64_t i = 0; i <= random() % 9; ++i) {
      DType dtype = random() % 2 == 0 ? DType::kFloat32 : DType::kBFloat16;
      tensors.push_back({absl::StrCat("t", i),
                         dtype,
                         {static_cast<int64_t>(random() % 300), 1 + static_cast<int64_t>(random() % 300)}});
    }
    tensors.push_back({"last", DType::kFloat32, {7}});
    SyncRig rig(harness_.get(), *Manifest::Create(std::move(tensors), 256 << (random() % 10)));
    rig.Stage(1);
    ASSERT_TRUE(rig.Sync(rig.receiver()).ok()) << "seed " << seed;
    rig.ExpectServes(rig.receiver(), 1);
  }
}

TEST_P(TransportConformanceTest, BringsManyChunksAndCountsTheBytes) {
  SyncRig rig(harness_.get(), LargeModel());
  rig.Stage(1);
  Prepare prepare = rig.Offer();
  auto received = rig.Move(rig.receiver(), prepare);
  ASSERT_TRUE(received.ok()) << received.status();
  EXPECT_GE(received->bytes.full, LargeModel().weight_bytes());
  EXPECT_LE(received->bytes.full, LargeModel().arena_bytes());
  EXPECT_GT(received->transfer_seconds, 0);
  EXPECT_GT(received->verify_seconds, 0);
  EXPECT_GE(rig.store()->chunks(), 4);
  rig.Finish(rig.receiver(), prepare.attempt);
}

TEST_P(TransportConformanceTest, GathersShardsOfSeveralSources) {
  Manifest manifest = LargeModel();
  Layout shards = Layout::FlatShards(manifest, 3);
  auto plan = SyncPlan::Create(manifest, shards, Layout::Whole(manifest, 1));
  ASSERT_TRUE(plan.ok());
  // Each source stages its shard at the beginning of an arena of its own.
  std::vector<char> whole(manifest.arena_bytes(), 0);
  ASSERT_TRUE(FillWeights(manifest, 9, whole.data()).ok());
  std::vector<std::unique_ptr<SendArena>> arenas;
  std::vector<std::unique_ptr<FaultyStore>> stores;
  ReceiveRequest request;
  int64_t begin = 0;
  for (int32_t rank = 0; rank < 3; ++rank) {
    auto flat = Manifest::Create({{"shard", DType::kBFloat16, {shards.arena_bytes(rank) / 2}}});
    arenas.push_back(*SendArena::Create(*flat, {.slots = 1}));
    ASSERT_TRUE(arenas.back()
                    ->Stage({1, 9},
                            [&](char* bytes) {
                              std::memcpy(bytes, whole.data() + begin, shards.arena_bytes(rank));
                              return absl::OkStatus();
                            })
                    .ok());
    begin += shards.arena_bytes(rank);
    stores.push_back(std::make_unique<FaultyStore>(arenas.back().get(), manifest.fingerprint()));
    Prepare prepare;
    prepare.version = {1, 9};
    request.sources.push_back({TrainerId("t", rank, 3), *harness_->AddSource(stores.back().get())->Open(prepare)});
  }
  request.manifest_fingerprint = manifest.fingerprint();
  request.version = {1, 9};
  request.copies = plan->CopiesTo(0);
  request.deadline = Clock::Real()->Now() + absl::Seconds(20);
  EXPECT_EQ(request.copies.size(), 3u);
  std::vector<char> arrived(manifest.arena_bytes(), 0);
  absl::Status status = harness_->receiver()->Receive(request, arrived.data(), std::stop_token());
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(arrived, whole);
}

TEST_P(TransportConformanceTest, ThreeSyncsInARowEachServeTheirOwnVersion) {
  SyncRig rig(harness_.get(), LargeModel());
  for (int64_t step : {1, 2, 3}) {
    rig.Stage(step);
    ASSERT_TRUE(rig.Sync(rig.receiver()).ok());
    rig.ExpectServes(rig.receiver(), step);
  }
  EXPECT_EQ(rig.source()->pinned(), 0);
}

TEST_P(TransportConformanceTest, AReceiverThatHoldsTheBaseIsSentTheAdaptersAlone) {
  SyncRig rig(harness_.get(), LargeModel());
  const Subset subset{{{1, 3}}, 99};
  const int64_t adapters = LargeModel().ranges()[1].size() + LargeModel().ranges()[2].size();
  auto sync = [&rig](SyncRig::Receiver* to) {
    Prepare prepare = rig.Offer();
    auto received = rig.Move(to, prepare);
    EXPECT_TRUE(received.ok()) << received.status();
    EXPECT_TRUE(to->receiver->Install({prepare.attempt}).ok());
    rig.Finish(to, prepare.attempt);
    return received.value_or(WeightReceiver::Received()).bytes;
  };
  rig.StageAdapters(1, subset);
  EXPECT_GE(sync(rig.receiver()).full, LargeModel().weight_bytes() - adapters);
  rig.ExpectServes(rig.receiver(), 1);
  for (int64_t step : {2, 3, 4}) {
    rig.StageAdapters(step, subset);
    EXPECT_EQ(sync(rig.receiver()), (PayloadBytes{0, adapters, 0}));
    rig.ExpectServes(rig.receiver(), step);
  }
  SyncRig::Receiver* late = rig.AddReceiver();
  EXPECT_GE(sync(late).full, LargeModel().weight_bytes() - adapters);
  rig.ExpectServes(late, 4);
  rig.StageAdapters(5, {subset.adapters, 100});  // adapters of another base
  EXPECT_GE(sync(rig.receiver()).full, LargeModel().weight_bytes() - adapters);
  rig.ExpectServes(rig.receiver(), 5);
}

// Checks the table of docs/weight-sync.md, "What is sent", for one receiver; returns the rows that differ.
inline std::vector<std::string> BreachesOfTheTable(TransportHarness* harness, const Manifest& model,
                                                   const std::function<bool(const ReceiverWeights&)>& needs_base) {
  SyncRig rig(harness, model);
  rig.SetNeedsBase(needs_base);
  SyncRig::Receiver* const to = rig.receiver();
  const std::vector<TensorRange> adapters = {{1, 3}};
  const int64_t adapter_bytes = model.ranges()[1].size() + model.ranges()[2].size();
  std::vector<std::string> breaches;
  int64_t step = 0;
  auto row = [&](const std::string& what, uint64_t base, bool sends_base) {
    rig.StageAdapters(++step, {adapters, base});
    const Prepare prepare = rig.Offer();
    const auto received = rig.Move(to, prepare);
    const bool installed = received.ok() && to->receiver->Install({prepare.attempt}).ok();
    rig.Finish(to, prepare.attempt);
    if (!installed || !rig.HasBits(*to, step)) {
      breaches.push_back(absl::StrCat(what, ": other bits than the source's, or none"));
    } else if ((received->bytes.full > 0) != sends_base || received->bytes.lora != adapter_bytes) {
      breaches.push_back(absl::StrCat(what, ": ", received->bytes.full, " bytes of the base"));
    }
  };
  row("the first sync", 99, true);
  row("the second sync", 99, false);
  row("the third sync", 99, false);
  to->target.Sleep(1);
  row("after a sleep of level 1", 99, false);
  to->target.Sleep(2);
  row("after a sleep of level 2", 99, true);
  row("the next sync", 99, false);
  to->target.Sleep(1);
  to->target.Sleep(2);
  row("after sleeps of level 1 and 2", 99, true);
  to->target.Sleep(2);
  to->target.Sleep(1);
  row("after sleeps of level 2 and 1", 99, true);
  row("another base", 100, true);
  row("that base again", 100, false);
  return breaches;
}

TEST_P(TransportConformanceTest, TheBaseIsSentWhenItLacksAndOtherRulesAreNoticed) {
  EXPECT_THAT(BreachesOfTheTable(harness_.get(), LargeModel(), NeedsBase), ::testing::IsEmpty());
  const auto again = [](const ReceiverWeights&) { return true; };
  EXPECT_THAT(BreachesOfTheTable(harness_.get(), LargeModel(), again), ::testing::SizeIs(5))
      << "every sync that needs no base";
  const auto forgets = [](const ReceiverWeights& receiver) { return !receiver.base_present; };
  EXPECT_THAT(BreachesOfTheTable(harness_.get(), LargeModel(), forgets), ::testing::Not(::testing::IsEmpty()))
      << "lost in a sleep";
}

TEST_P(TransportConformanceTest, WhoClaimsABaseThatItDoesNotHoldServesNothingOfItAndIsSentTheBase) {
  SyncRig rig(harness_.get(), LargeModel());
  SyncRig::Receiver* const to = rig.receiver();
  const Subset subset{{{1, 3}}, 99};
  for (int64_t step : {1, 2}) {
    rig.StageAdapters(step, subset);
    ASSERT_TRUE(rig.Sync(to).ok());
  }
  // Its base is another one now, in both weight sets, and it does not know.
  const ByteRange base = LargeModel().ranges()[0];
  for (char* set : {to->target.shadow(), const_cast<char*>(to->target.live())}) set[(base.begin + base.end) / 2] ^= 1;
  EXPECT_EQ(to->receiver->base_digest(), 99u);
  rig.StageAdapters(3, subset);
  EXPECT_EQ(ErrorReason(rig.Sync(to)), "DIGEST_MISMATCH");
  EXPECT_EQ(to->receiver->serving(), (PolicyVersion{1, 2}));
  EXPECT_EQ(to->receiver->base_digest(), 0u) << "its next hello and heartbeat name no base";
  ASSERT_TRUE(rig.Sync(to).ok());
  rig.ExpectServes(to, 3);
  EXPECT_EQ(to->receiver->base_digest(), 99u);
}

TEST_P(TransportConformanceTest, WhoIsAskedToCheckItsWeightsFindsOneBitThatHasChangedAndIsOfNoUseAnyMore) {
  SyncRig rig(harness_.get(), LargeModel());
  SyncRig::Receiver* const to = rig.receiver();
  auto check = [&] {
    Prepare prepare = rig.Offer();
    EXPECT_EQ(ErrorReason(to->receiver->Prepare(prepare).status()), "OLD_VERSION") << "without a check";
    prepare.check_weights = true;
    const auto prepared = to->receiver->Prepare(prepare);
    if (prepared.ok()) {
      EXPECT_TRUE(prepared->already_serves);
      const auto installed = to->receiver->Install({prepare.attempt});
      EXPECT_TRUE(installed.ok() && installed->unchanged && installed->pause_seconds == 0) << installed.status();
    }
    rig.Finish(to, prepare.attempt);
    return ErrorReason(prepared.status());
  };
  for (int64_t step : {1, 2, 3}) {
    rig.StageAdapters(step, {{{1, 3}}, 99});
    ASSERT_TRUE(rig.Sync(to).ok());
    EXPECT_EQ(check(), "");
    rig.ExpectServes(to, step);
  }
  to->target.Sleep(1);
  EXPECT_EQ(check(), "");
  EXPECT_EQ(to->damaged, 0);

  const ByteRange base = LargeModel().ranges()[0];
  const_cast<char*>(to->target.live())[(base.begin + base.end) / 2] ^= 1;
  EXPECT_EQ(check(), "WEIGHTS_DAMAGED");
  EXPECT_EQ(to->damaged, 1);
  EXPECT_EQ(to->receiver->base_digest(), 0u);
  EXPECT_TRUE(to->receiver->serving().IsNone());
  rig.StageAdapters(4, {{{1, 3}}, 99});
  EXPECT_EQ(ErrorReason(rig.Sync(to)), "WEIGHTS_DAMAGED")
      << "it ends; the process that takes its place is sent the base";
}

TEST_P(TransportConformanceTest, ALateJoinerGetsTheCurrentVersionAndTheOtherIsNotDisturbed) {
  SyncRig rig(harness_.get(), LargeModel());
  rig.Stage(1);
  ASSERT_TRUE(rig.Sync(rig.receiver()).ok());
  SyncRig::Receiver* late = rig.AddReceiver();
  ASSERT_TRUE(rig.Sync(late).ok());
  rig.ExpectServes(late, 1);
  rig.ExpectServes(rig.receiver(), 1);
}

TEST_P(TransportConformanceTest, TwoReceiversAreServedAtTheSameTime) {
  SyncRig rig(harness_.get(), LargeModel());
  SyncRig::Receiver* second = rig.AddReceiver();
  rig.Stage(1);
  Prepare prepare = rig.Offer();
  absl::Status other;
  std::string rendezvous = *rig.source()->Prepare(prepare);
  std::thread thread([&] {
    other = second->receiver->Prepare(prepare).status();
    if (other.ok()) other = second->receiver->Transfer(rig.TransferFor(second, prepare, rendezvous)).status();
  });
  EXPECT_TRUE(rig.Move(rig.receiver(), prepare).ok());
  thread.join();
  EXPECT_TRUE(other.ok()) << other;
}

TEST_P(TransportConformanceTest, ARefusedPrepareMovesNothing) {
  SyncRig rig(harness_.get(), LargeModel());
  rig.Stage(1);
  auto refused = [&rig](const Prepare& prepare) { return rig.receiver()->receiver->Prepare(prepare).status(); };
  Prepare prepare = rig.Offer();
  prepare.manifest_fingerprint ^= 1;
  EXPECT_THAT(refused(prepare), HasReason("MODEL_MISMATCH"));
  EXPECT_THAT(rig.source()->Prepare(prepare).status(), HasReason("MODEL_MISMATCH"));
  prepare = rig.Offer();
  prepare.plan_hash ^= 1;
  EXPECT_THAT(refused(prepare), HasReason("PLAN_MISMATCH"));
  prepare = rig.Offer();
  prepare.transport = "pigeon";
  EXPECT_THAT(refused(prepare), HasReason("TRANSPORT_UNKNOWN"));
  EXPECT_THAT(rig.source()->Prepare(prepare).status(), HasReason("TRANSPORT_UNKNOWN"));
  prepare = rig.Offer();
  prepare.version = {0, 0};
  EXPECT_THAT(refused(prepare), HasReason("OLD_VERSION"));
  EXPECT_EQ(rig.store()->chunks(), 0);
  EXPECT_TRUE(rig.receiver()->receiver->serving().IsNone());
  EXPECT_TRUE(rig.Sync(rig.receiver()).ok()) << "a refusal leaves the receiver free for the next attempt";
}

TEST_P(TransportConformanceTest, ASenderThatDiesBeforeTheTransferIsReported) {
  SyncRig rig(harness_.get(), LargeModel());
  rig.Stage(1);
  Prepare prepare = rig.Offer();
  std::string rendezvous = *rig.source()->Prepare(prepare);
  ASSERT_TRUE(rig.receiver()->receiver->Prepare(prepare).ok());
  harness_->KillSource(rig.end());
  absl::Status status =
      rig.receiver()->receiver->Transfer(rig.TransferFor(rig.receiver(), prepare, rendezvous)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(status, HasReason("PEER_LOST"));
}

TEST_P(TransportConformanceTest, ASenderThatDiesAtAnyChunkLeavesTheOldVersionServingAndCanBeRepeated) {
  SyncRig rig(harness_.get(), LargeModel());
  rig.Stage(1);
  ASSERT_TRUE(rig.Sync(rig.receiver()).ok());
  rig.Stage(2);
  for (int fatal = 0; fatal < 3; ++fatal) {
    rig.store()->SetOnChunk([fatal](int chunk, ByteRange, char*) {
      return chunk < fatal ? absl::OkStatus() : Error(absl::StatusCode::kUnavailable, "PEER_LOST", "it died");
    });
    EXPECT_THAT(rig.Sync(rig.receiver()), HasReason("PEER_LOST"));
    rig.ExpectServes(rig.receiver(), 1);
  }
  rig.store()->SetOnChunk(nullptr);
  ASSERT_TRUE(rig.Sync(rig.receiver()).ok());
  rig.ExpectServes(rig.receiver(), 2);
}

TEST_P(TransportConformanceTest, ADeadlineThatPassesEndsTheTransfer) {
  SyncRig rig(harness_.get(), LargeModel());
  rig.Stage(1);
  absl::Notification never;
  rig.store()->SetOnChunk([&never](int, ByteRange, char*) {
    never.WaitForNotificationWithTimeout(absl::Milliseconds(60));  // stands for a slow link
    return absl::OkStatus();
  });
  absl::Status status = rig.Sync(rig.receiver(), absl::Milliseconds(100));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(status, HasReason("DEADLINE"));
  EXPECT_TRUE(rig.receiver()->receiver->serving().IsNone());
}

TEST_P(TransportConformanceTest, FinishCancelsATransferUnderWay) {
  SyncRig rig(harness_.get(), LargeModel());
  rig.Stage(1);
  Prepare prepare = rig.Offer();
  rig.store()->SetOnChunk([&](int chunk, ByteRange, char*) {
    if (chunk == 1) rig.receiver()->receiver->Finish(prepare.attempt);
    return absl::OkStatus();
  });
  absl::Status status = rig.Move(rig.receiver(), prepare).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  EXPECT_THAT(rig.receiver()->receiver->Install({prepare.attempt}).status(), HasReason("NOT_VERIFIED"));
  rig.Finish(rig.receiver(), prepare.attempt);
  rig.store()->SetOnChunk(nullptr);
  ASSERT_TRUE(rig.Sync(rig.receiver()).ok());
  rig.ExpectServes(rig.receiver(), 1);
}

TEST_P(TransportConformanceTest, EveryFlippedBitIsCaughtBeforeTheInstall) {
  SyncRig rig(harness_.get(), LargeModel());
  rig.Stage(1);
  ASSERT_TRUE(rig.Sync(rig.receiver()).ok());
  std::mt19937_64 random(5);
  for (int64_t step = 2; step < 12; ++step) {
    rig.Stage(step);
    int victim = static_cast<int>(random() % 4);
    rig.store()->SetOnChunk([&random, victim](int chunk, ByteRange range, char* bytes) {
      if (chunk == victim) {
        char& byte = bytes[random() % range.size()];
        byte = static_cast<char>(byte ^ (1 << random() % 8));
      }
      return absl::OkStatus();
    });
    EXPECT_THAT(rig.Sync(rig.receiver()), HasReason("DIGEST_MISMATCH"));
    rig.ExpectServes(rig.receiver(), 1);
  }
}

TEST_P(TransportConformanceTest, ASupersededReaderIsToldAndJoinsTheNextAttempt) {
  SyncRig rig(harness_.get(), LargeModel(), /*slots=*/1);
  rig.Stage(1);
  rig.store()->SetOnChunk([&](int chunk, ByteRange, char*) {
    if (chunk != 0) return absl::OkStatus();
    // The trainer needs the only slot while this receiver reads its first chunk, and does not wait for the receiver.
    auto staged = rig.arena()->Stage({1, 2}, [](char* bytes) { return FillWeights(LargeModel(), 2, bytes); });
    return staged.status();
  });
  Prepare prepare = rig.Offer();
  EXPECT_THAT(rig.Move(rig.receiver(), prepare).status(), HasReason("SUPERSEDED"));
  rig.Finish(rig.receiver(), prepare.attempt);
  EXPECT_GE(rig.arena()->superseded_readers(), 1);
  EXPECT_THAT(rig.source()->Prepare(prepare).status(), HasReason("VERSION_NOT_STAGED"));
  rig.store()->SetOnChunk(nullptr);
  rig.Stage(3);
  ASSERT_TRUE(rig.Sync(rig.receiver()).ok());
  rig.ExpectServes(rig.receiver(), 3);
}

TEST_P(TransportConformanceTest, ASenderThatDiesAfterTheTransferChangesNothing) {
  SyncRig rig(harness_.get(), LargeModel());
  rig.Stage(1);
  Prepare prepare = rig.Offer();
  ASSERT_TRUE(rig.Move(rig.receiver(), prepare).ok());
  harness_->KillSource(rig.end());
  ASSERT_TRUE(rig.receiver()->receiver->Install({prepare.attempt}).ok());
  rig.ExpectServes(rig.receiver(), 1);
}

}  // namespace syncopate::synchronizer
