#include "bench/sync/sync_case.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "bench/sync/bench_model.h"
#include "synchronizer/plan/layout_text.h"
#include "tests/support/status_matchers.h"

namespace syncopate::bench {
namespace {

using ::syncopate::testing::HasReason;
using ::testing::ElementsAre;

TEST(SyncCaseTest, RefusesWhatCannotBeMeasured) {
  EXPECT_TRUE(SyncCase().Validate().ok());
  const std::function<void(SyncCase&)> spoils[] = {
      [](SyncCase& bad) { bad.sources = 0; },
      [](SyncCase& bad) { bad.replicas = 100; },
      [](SyncCase& bad) { bad.tensor_parallel = 9; },
      [](SyncCase& bad) { bad.syncs = 0; },
      [](SyncCase& bad) { bad.layers = -1; },
      [](SyncCase& bad) { bad.answers = 1; },
      [](SyncCase& bad) { bad.transport = "carrier pigeon"; },
      [](SyncCase& bad) { bad.install = "copy"; },
      [](SyncCase& bad) { bad.cpu = true, bad.transport = "ipc"; },
      [](SyncCase& bad) {
        bad.fault = {BenchFault::Kind::kKill, "receiver", "transfer"};
      },
      [](SyncCase& bad) {
        bad.fault = {BenchFault::Kind::kStop, "source", "lunch"};
      },
      [](SyncCase& bad) { bad.limit = absl::ZeroDuration(); },
      [](SyncCase& bad) { bad.calm = true; },  // not allowed while the receiver decodes
  };
  for (const auto& spoil : spoils) {
    SyncCase bad;
    spoil(bad);
    EXPECT_THAT(bad.Validate(), HasReason("BAD_CASE")) << bad.ToString();
  }
}

TEST(SyncCaseTest, PlacesSourcesFirstAndGoesRound) {
  SyncCase sync_case;
  sync_case.sources = 2;
  sync_case.replicas = 1;
  sync_case.tensor_parallel = 2;
  EXPECT_THAT(PlaceProcesses(sync_case, 4), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(PlaceProcesses(sync_case, 3), ElementsAre(0, 1, 2, 0));
  EXPECT_THAT(PlaceProcesses(sync_case, 0), ElementsAre(0, 0, 0, 0));
  sync_case.late_joiner = true;
  EXPECT_THAT(PlaceProcesses(sync_case, 8), ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(SyncCaseTest, DescribesLayoutsThatExist) {
  SyncCase sync_case;
  sync_case.sources = 3;
  sync_case.tensor_parallel = 2;
  const Manifest manifest = *BenchManifest("tiny");
  for (const bool cpu : {false, true}) {
    sync_case.cpu = cpu;
    auto source = synchronizer::BuildLayout(manifest, MakeSourceLayout(sync_case));
    ASSERT_TRUE(source.ok()) << source.status();
    EXPECT_EQ(source->ranks(), 3);
  }
  auto receiver = synchronizer::BuildLayout(manifest, MakeReceiverLayout(sync_case));
  ASSERT_TRUE(receiver.ok()) << receiver.status();
  EXPECT_EQ(receiver->ranks(), 2);
}

}  // namespace
}  // namespace syncopate::bench
