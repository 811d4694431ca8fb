#include "tests/unit/synchronizer/simulation.h"

#include <algorithm>
#include <string>

#include "absl/strings/match.h"
#include "base/digest.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncopate::synchronizer {
namespace {

// Draws the faults of a seed. Each combination occurs, so that no fault always hides behind another.
Simulation::Options Swarm(uint64_t seed) {
  Simulation::Options options;
  options.seed = seed;
  options.rollouters = 1 + static_cast<int>(seed % 5);
  uint64_t bits = seed / 5;
  options.faults.breaks = bits & 1;
  options.faults.kills = bits & 2;
  options.faults.stalls = bits & 4;
  options.faults.trainer = bits & 8;
  options.faults.synchronizer = bits & 16;
  options.faults.refusals = bits & 32;
  options.trainer_ranks = 1 + static_cast<int>(Mix64(seed) & 1);
  options.group_transport = (Mix64(seed) & 2) != 0;
  options.faults.disk = (Mix64(seed) & 12) == 12;
  return options;
}

// A multiple of the 64 combinations of faults.
constexpr int64_t kSeeds = 1600 / SYNCOPATE_ONE_RUN_IN;

TEST(SynchronizerSimulationTest, KeepsItsInvariantsUnderEveryMixtureOfFaults) {
  int64_t installs = 0;
  int64_t failures = 0;
  int64_t relabels = 0;
  int64_t epochs = 0;
  int64_t superseded = 0;
  int64_t groups_lost = 0;
  int64_t not_prepared = 0;
  int64_t connected = 0;
  int64_t not_connected = 0;
  int64_t taken_over = 0;
  int64_t blocked = 0;
  std::array<int64_t, 3> lost = {};
  for (int64_t seed = 0; seed < kSeeds; ++seed) {
    Simulation simulation(Swarm(seed));
    simulation.Run();
    ASSERT_THAT(simulation.violations(), ::testing::IsEmpty());
    installs += simulation.installs();
    failures += simulation.failures();
    relabels += simulation.relabels();
    epochs += simulation.epochs();
    superseded += simulation.superseded();
    groups_lost += simulation.groups_lost();
    not_prepared += simulation.not_prepared();
    connected += simulation.connected();
    not_connected += simulation.not_connected();
    taken_over += simulation.taken_over();
    blocked += simulation.blocked();
    for (size_t stage = 0; stage < lost.size(); ++stage) lost[stage] += simulation.lost()[stage];
  }
  // The runs were busy: there was much that could go wrong.
  EXPECT_GT(installs, 180 * kSeeds);
  EXPECT_GT(failures, 6 * kSeeds);
  EXPECT_GT(relabels, kSeeds / 16);
  EXPECT_GT(epochs, 3 * kSeeds / 2);
  EXPECT_GT(superseded, kSeeds / 16);
  EXPECT_GT(groups_lost, kSeeds / 16);
  EXPECT_GT(not_prepared, kSeeds / 16);
  EXPECT_GT(connected, kSeeds / 16);
  EXPECT_GT(not_connected, kSeeds / 16);
  EXPECT_GT(taken_over, kSeeds / 64);
  EXPECT_GT(blocked, kSeeds / 8);
  for (int64_t stage : lost) EXPECT_GT(stage, kSeeds / 64) << "members are lost at every stage";
}

// The options of a seed for versions with adapters.
Simulation::Options SwarmOfAdapters(uint64_t seed) {
  Simulation::Options options = Swarm(seed);
  options.adapters = true;
  options.faults.sleeps = (Mix64(seed) & 48) != 0;
  options.faults.damage = (Mix64(seed) & 192) == 192;
  return options;
}

TEST(SynchronizerSimulationTest, TheBaseIsSentToThoseWhoLackItAndToNobodyElseUnderEveryMixtureOfFaults) {
  constexpr int64_t kRuns = kSeeds / 4;
  int64_t installs = 0;
  int64_t bases = 0;
  int64_t found = 0;
  for (int64_t seed = 0; seed < kRuns; ++seed) {
    Simulation simulation(SwarmOfAdapters(seed));
    simulation.Run();
    ASSERT_THAT(simulation.violations(), ::testing::IsEmpty());
    installs += simulation.installs();
    bases += simulation.bases_sent();
    found += simulation.damage_found();
  }
  EXPECT_GT(installs, 100 * kRuns);
  EXPECT_GT(bases, 4 * kRuns);
  EXPECT_LT(bases, installs / 5);
  EXPECT_GT(found, 0);
}

// In which runs a mutant meets what it does wrong depends on the compiler, which may evaluate arguments in any order.
TEST(SynchronizerSimulationTest, ARollouterThatForgetsItsBaseOrThatItHasLostItIsNoticed) {
  for (const auto mutant : {Simulation::Mutant::kForgetsBase, Simulation::Mutant::kForgetsSleep}) {
    int noticed = 0;
    for (uint64_t seed = 0; seed < 8; ++seed) {
      Simulation::Options options;
      options.seed = seed;
      options.adapters = true;
      options.faults.sleeps = true;
      options.group_transport = (seed & 1) != 0;
      options.mutant = mutant;
      Simulation simulation(options);
      simulation.Run();
      const char* const what = mutant == Simulation::Mutant::kForgetsBase ? "is sent it again" : "lacks the base";
      for (const std::string& violation : simulation.violations()) {
        if (violation.find(what) == std::string::npos) continue;
        ++noticed;
        break;
      }
    }
    EXPECT_GE(noticed, 2) << static_cast<int>(mutant);
  }
}

// The base of a late joiner takes as long as several versions: the others get each of them meanwhile, and the joiner
// is served by one attempt.
TEST(SynchronizerSimulationTest, ALateJoinersBaseDelaysNobodyAndNobodyTakesItsSlot) {
  for (uint64_t seed = 0; seed < 40 / SYNCOPATE_ONE_RUN_IN; ++seed) {
    Simulation::Options options;
    options.seed = seed;
    options.adapters = true;
    options.rollouters = 2 + static_cast<int>(seed % 3);
    options.publish_every = 0.3;
    // The same until somebody joins: of the first versions some are late everywhere, as they wait for the base too.
    Simulation without(options);
    without.Run();
    options.join_one_at = 20;
    Simulation simulation(options);
    simulation.Run();
    EXPECT_THAT(simulation.violations(), ::testing::IsEmpty());
    EXPECT_EQ(simulation.bases_sent(), without.bases_sent() + 1) << "seed " << seed;
    // When it has the base, the version that it asks for next may be gone: one more sync of adapters, not of the base.
    EXPECT_LE(simulation.superseded(), without.superseded() + 1) << "seed " << seed;
    EXPECT_EQ(simulation.late(), without.late()) << "seed " << seed;
    EXPECT_EQ(simulation.failures(), 0) << "seed " << seed;
  }
}

TEST(SynchronizerSimulationTest, ACheckFindsTheRollouterWhoseWeightsHaveChangedAndItsSuccessorIsSentTheBase) {
  for (uint64_t seed = 0; seed < 40 / SYNCOPATE_ONE_RUN_IN; ++seed) {
    Simulation::Options options;
    options.seed = seed;
    options.adapters = true;
    options.rollouters = 1 + static_cast<int>(seed % 4);
    options.group_transport = (seed & 1) != 0;
    options.publish_every = options.group_transport ? 4 : 0.4;  // a group is formed meanwhile
    options.damage_one_at = 68;                                 // no version is published any more
    options.end_seconds = 80;
    Simulation unnoticed(options);
    unnoticed.Run();
    EXPECT_THAT(unnoticed.violations(), ::testing::ElementsAre(::testing::HasSubstr("have changed in its memory")));
    options.trigger_at = 69;
    Simulation simulation(options);
    simulation.Run();
    EXPECT_THAT(simulation.violations(), ::testing::IsEmpty()) << "seed " << seed;
    EXPECT_EQ(simulation.damage_found(), 1);
    EXPECT_EQ(simulation.bases_sent(), unnoticed.bases_sent() + 1);
  }
}

// Ranks are out of phase. A trainer whose ranks each report their own newest part leaves versions unknown for seconds.
// A trainer whose rank 0 reports a version once all ranks have staged it does not.
TEST(SynchronizerSimulationTest, VersionsStarveWhereEachRankTellsOfItsOwnPart) {
  constexpr int kRuns = 10;
  for (const int ranks : {2, 3}) {
    for (const bool by_parts : {false, true}) {
      int starving = 0;
      for (uint64_t seed = 0; seed < kRuns; ++seed) {
        Simulation::Options options;
        options.seed = seed;
        options.rollouters = 2;
        options.trainer_ranks = ranks;
        options.publish_by_parts = by_parts;
        Simulation simulation(options);
        simulation.Run();
        if (!by_parts) {
          EXPECT_THAT(simulation.violations(), ::testing::IsEmpty()) << "seed " << seed;
        }
        starving += static_cast<int>(
            std::count_if(simulation.violations().begin(), simulation.violations().end(),
                          [](const std::string& violation) { return absl::StrContains(violation, "starves"); }) > 0);
      }
      EXPECT_EQ(starving, by_parts ? kRuns : 0) << ranks << " ranks";
    }
  }
}

TEST(SynchronizerSimulationTest, TheSameSeedGivesTheSameRun) {
  for (uint64_t seed : {63u * 5, 63u * 5 + 4, 640u + 319}) {
    Simulation first(Swarm(seed));
    Simulation second(Swarm(seed));
    first.Run();
    second.Run();
    EXPECT_EQ(first.trace_hash(), second.trace_hash());
    EXPECT_NE(first.trace_hash(), 0u);
  }
}

TEST(SynchronizerSimulationTest, AFullDiskHoldsTheSynchronizerUpAndNobodyIsLost) {
  for (uint64_t seed = 0; seed < 40 / SYNCOPATE_ONE_RUN_IN; ++seed) {
    Simulation::Options options;
    options.seed = seed;
    options.rollouters = 1 + static_cast<int>(seed % 5);
    options.trainer_ranks = 1 + static_cast<int>(seed & 1);
    options.group_transport = (seed & 2) != 0;
    options.disk_full_at = 5 + 0.1 * static_cast<double>(seed);
    Simulation simulation(options);
    simulation.Run();
    EXPECT_THAT(simulation.violations(), ::testing::IsEmpty());
    EXPECT_EQ(simulation.blocked(), 1);
    EXPECT_EQ(simulation.epochs(), 1) << "no trainer was started again";
    for (int64_t lost : simulation.lost()) EXPECT_EQ(lost, 0) << "seed " << seed;
    // Where members form groups, versions that come faster than a group is formed fail with or without a full disk.
    if (!options.group_transport) {
      EXPECT_EQ(simulation.failures(), 0) << "seed " << seed;
    }
    EXPECT_GT(simulation.installs(), 20);
  }
}

TEST(SynchronizerSimulationTest, ALateJoinersOwnSyncIsTheOnlyOneThatFormsAGroup) {
  for (uint64_t seed = 0; seed < 40 / SYNCOPATE_ONE_RUN_IN; ++seed) {
    int64_t formed[2] = {};
    for (bool rehearse : {false, true}) {
      Simulation::Options options;
      options.seed = seed;
      options.rollouters = 2 + static_cast<int>(seed % 3);
      options.group_transport = true;
      options.publish_every = 4;
      options.join_one_at = 30;
      options.rehearse = rehearse;
      Simulation simulation(options);
      simulation.Run();
      EXPECT_THAT(simulation.violations(), ::testing::IsEmpty());
      formed[rehearse] = simulation.formed_in_syncs();
      EXPECT_GE(simulation.connected(), rehearse ? options.rollouters + 1 : 0);
    }
    EXPECT_LE(formed[true], formed[false] - 1) << "seed " << seed;
  }
}

TEST(SynchronizerSimulationTest, AStoppedReceiverDelaysTheOthersAtMostForThePrepareDeadline) {
  for (uint64_t seed = 0; seed < 40 / SYNCOPATE_ONE_RUN_IN; ++seed) {
    Simulation::Options options;
    options.seed = seed;
    options.rollouters = 2 + static_cast<int>(seed % 4);
    options.publish_every = 0.2;
    options.stop_one_at = 3 + 0.01 * static_cast<double>(seed);
    Simulation simulation(options);
    simulation.Run();
    EXPECT_THAT(simulation.violations(), ::testing::IsEmpty());
    EXPECT_LT(simulation.worst_lag(), 1.2) << "seed " << seed;
    EXPECT_LE(simulation.late(), 7) << "once, so only the versions of that second, seed " << seed;
    EXPECT_GT(simulation.worst_lag(), 0.01);
  }
}

}  // namespace
}  // namespace syncopate::synchronizer
