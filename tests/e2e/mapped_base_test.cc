// Trainer and rollouters that take turns on one device (run.share_gpu) and train adapters: rollouters map the trainer's
// base weights, which are sent to none of them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/adapter_syncs.h"
#include "tests/support/eventually.h"
#include "tests/support/run_expectations.h"
#include "tests/support/run_harness.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing::mapped_base_test {
namespace {

constexpr int64_t kRank = 4;

std::vector<std::string> InTurns(const std::vector<std::string>& more) {
  std::vector<std::string> words = {"run.share_gpu=true", absl::StrCat("lora.rank=", kRank), "train.kl_coef=0.01"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// Memory that a process shares with others by one descriptor, and that it can write to.
struct Mappings {
  int read_only = 0;
  int writable = 0;
};
Mappings CountBaseMappings(pid_t pid) {
  Mappings mappings;
  std::ifstream maps(absl::StrCat("/proc/", pid, "/maps"));
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:base weights") == std::string::npos) continue;
    ++(line.find(" r--s ") != std::string::npos ? mappings.read_only : mappings.writable);
  }
  return mappings;
}

// Daemons that start and end one by one while a run goes on, and the syncs that each start or end causes.
class MappedBaseTest : public ::testing::Test {
 protected:
  explicit MappedBaseTest(const std::vector<std::string>& overrides = {"run.steps=1000000", "eval.every_steps=0",
                                                                       "checkpoint.every_steps=0"})
      : run_(InTurns(overrides)), wire_(CountWireBytes(kRank)) {}

  void Start(const std::string& role, int64_t index = 0, const std::vector<std::string>& more = {}) {
    auto daemon = run_.StartDaemon(role, index, more);
    ASSERT_THAT(daemon, IsOk());
    daemons_[absl::StrCat(role, "-", index)] = *std::move(daemon);
  }
  // A rollouter begins when the trainer answers it, and so may have to wait for a turn.
  void Launch(int64_t index) {
    auto daemon = run_.LaunchDaemon("rollouter", index);
    ASSERT_THAT(daemon, IsOk());
    daemons_[absl::StrCat("rollouter-", index)] = *std::move(daemon);
  }
  int64_t CountDescriptors(const std::string& name) {
    const std::string folder = absl::StrCat("/proc/", daemons_[name]->pid(), "/fd");
    return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator());
  }
  void Kill(const std::string& name) {
    daemons_[name]->Kill();
    ASSERT_THAT(daemons_[name]->WaitExit(kPatience), IsOk());
  }
  // The syncs of a replica that brought bytes, in order, of attempts after `attempt`.
  std::vector<Json> GetSyncs(const std::string& replica, int64_t attempt) {
    std::vector<Json> syncs = ReadSyncs(run_, replica);
    std::erase_if(
        syncs, [attempt](const Json& sync) { return sync["result"] != "ok" || GetNumber(sync["attempt"]) <= attempt; });
    return syncs;
  }
  void Forget(const std::string& replica) {
    const std::vector<Json> syncs = GetSyncs(replica, -1);
    if (!syncs.empty()) seen_[replica] = GetNumber(syncs.back()["attempt"]);
  }
  static bool Maps(const Json& sync) { return GetBytes(sync, "mapped") > 0; }
  // Expects that the next syncs of a replica map the base and send none of it. Between two turns it may get a further
  // version, for which it has the base.
  void ExpectMapped(const std::string& why, const std::string& replica) {
    constexpr ptrdiff_t kCount = 3;
    std::vector<Json> syncs;
    ASSERT_TRUE(Eventually(2 * kPatience,
                           [&] {
                             syncs = GetSyncs(replica, seen_.count(replica) > 0 ? seen_[replica] : -1);
                             return std::count_if(syncs.begin(), syncs.end(), Maps) >= kCount;
                           }))
        << why << "\n"
        << run_.Log(replica);
    for (const Json& sync : syncs) {
      EXPECT_EQ(GetBytes(sync, "full"), 0) << why << " " << sync;
      EXPECT_GE(GetBytes(sync, "mapped"), Maps(sync) ? wire_.base : 0) << why << " " << sync;
      EXPECT_LE(GetBytes(sync, "mapped"), wire_.padded_base) << why << " " << sync;
      EXPECT_EQ(GetBytes(sync, "lora"), wire_.adapters) << why << " " << sync;
      EXPECT_EQ(GetNumber(sync["bytes"]), wire_.adapters) << why << " " << sync;
    }
    seen_[replica] = GetNumber(syncs.back()["attempt"]);
  }

  RunHarness run_;
  const WireBytes wire_;
  std::map<std::string, std::unique_ptr<Process>> daemons_;
  std::map<std::string, int64_t> seen_;  // the newest attempt that was checked, by replica
};

TEST_F(MappedBaseTest, AfterEachTurnTheBaseIsMappedAgainAndNoByteOfItIsSent) {
  for (const char* role : {"synchronizer", "trainer", "rollouter"}) ASSERT_NO_FATAL_FAILURE(Start(role));
  ASSERT_NO_FATAL_FAILURE(ExpectMapped("the first turns", "rollouter-0"));
  ASSERT_NO_FATAL_FAILURE(Launch(1));
  for (const char* name : {"rollouter-0", "rollouter-1"}) {
    ASSERT_NO_FATAL_FAILURE(ExpectMapped("with a late joiner", name));
  }

  ASSERT_NO_FATAL_FAILURE(Kill("rollouter-1"));
  Forget("rollouter-1");
  ASSERT_NO_FATAL_FAILURE(Launch(1));
  ASSERT_NO_FATAL_FAILURE(ExpectMapped("a rollouter that was killed and started again", "rollouter-1"));
  // Turns pass while the others are looked at.
  const int64_t before = CountDescriptors("trainer-0"), before_there = CountDescriptors("rollouter-0");
  Forget("rollouter-0");
  for (int turns = 0; turns < 5; ++turns) ASSERT_NO_FATAL_FAILURE(ExpectMapped("later turns", "rollouter-0"));
  constexpr int64_t kUnderWay = 4;  // calls of this moment
  EXPECT_LE(CountDescriptors("trainer-0"), before + kUnderWay);
  EXPECT_LE(CountDescriptors("rollouter-0"), before_there + kUnderWay);
  EXPECT_LE(CountBaseMappings(daemons_["rollouter-0"]->pid()).read_only, 3) << "one for each adapter set";

  const Mappings trainer = CountBaseMappings(daemons_["trainer-0"]->pid());
  EXPECT_GT(trainer.read_only, 0) << "the trainer stages every version beside one base";
  EXPECT_EQ(trainer.writable, 0) << "nobody can write to weights that others map";

  daemons_["trainer-0"]->Interrupt();
  ASSERT_THAT(daemons_["trainer-0"]->WaitExit(kPatience), IsOk());
  for (const char* name : {"rollouter-0", "rollouter-1"}) Forget(name);
  ASSERT_NO_FATAL_FAILURE(Start("trainer", 0, {"run.resume=true"}));
  for (const char* name : {"rollouter-0", "rollouter-1"}) {
    ASSERT_NO_FATAL_FAILURE(ExpectMapped("a trainer that was started again", name));
  }
}

// A trainer lends its base to rollouters that take turns with it, and to no others.
TEST_F(MappedBaseTest, WithoutTurnsTheBaseIsSent) {
  const std::vector<std::string> apart = {"run.share_gpu=false"};
  for (const char* role : {"synchronizer", "trainer", "rollouter"}) ASSERT_NO_FATAL_FAILURE(Start(role, 0, apart));
  std::vector<Json> syncs;
  ASSERT_TRUE(Eventually(kPatience, [&] { return (syncs = GetSyncs("rollouter-0", -1)).size() >= 3; }));
  EXPECT_GE(GetBytes(syncs[0], "full"), wire_.base) << syncs[0];
  for (const Json& sync : syncs) EXPECT_EQ(GetBytes(sync, "mapped"), 0) << sync;
}

class MappedBaseTwinTest : public MappedBaseTest {
 protected:
  static constexpr int64_t kSteps = 25;
  MappedBaseTwinTest()
      : MappedBaseTest({"staleness.max_staleness=0", "run.seed=3", absl::StrCat("run.steps=", kSteps)}) {}
  // Expects the bits of a run that knows nothing of turns, in which the base is received.
  void ExpectTwin() {
    auto twin = TwinDigests(run_.config(), run_.overrides(), kSteps);
    ASSERT_THAT(twin, IsOk());
    EXPECT_EQ(run_.Digests(), *twin);
  }
};

TEST_F(MappedBaseTwinTest, ARunThatMapsTheBaseHasTheBitsOfItsTwin) {
  ASSERT_NO_FATAL_FAILURE(ExpectEnd(run_.Run(), 0));
  ExpectTwin();
  const Json syncs = run_.Summary()["syncs"];
  EXPECT_EQ(syncs["failed"], 0) << syncs;
  const int64_t bytes = GetNumber(syncs["bytes"]);
  EXPECT_GT(bytes, 0) << syncs;
  EXPECT_EQ(bytes % wire_.adapters, 0) << "adapters alone were sent: " << syncs;
}

// Its successor lends a base of its own; until they have mapped that one, rollouters go on with the dead trainer's.
TEST_F(MappedBaseTwinTest, ATrainerAndARollouterThatAreKilledChangeNoBit) {
  ASSERT_NO_FATAL_FAILURE(Start("synchronizer"));
  for (int64_t index : {0, 1}) ASSERT_NO_FATAL_FAILURE(Launch(index));
  ASSERT_NO_FATAL_FAILURE(Start("trainer", 0, {"run.resume=false"}));
  ASSERT_THAT(run_.AwaitStep(4), IsOk());
  ASSERT_NO_FATAL_FAILURE(Kill("rollouter-1"));
  ASSERT_NO_FATAL_FAILURE(Launch(1));
  ASSERT_THAT(run_.AwaitStep(8), IsOk());
  ASSERT_NO_FATAL_FAILURE(ExpectMapped("before the trainer dies", "rollouter-0"));
  ASSERT_NO_FATAL_FAILURE(Kill("trainer-0"));
  ASSERT_NO_FATAL_FAILURE(Start("trainer", 0, {"run.resume=true"}));
  auto exit = daemons_["trainer-0"]->WaitExit(3 * kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 0) << daemons_["trainer-0"]->Log();
  ExpectTwin();
}

}  // namespace
}  // namespace syncopate::testing::mapped_base_test
