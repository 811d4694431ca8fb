// Peers that send malformed data, or nothing, to every port of a run.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/fault/fault_support.h"
#include "tests/support/hostile_peer.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing::hostile_peer_test {
namespace {

constexpr int kMutePeers = 50;  // at each port
constexpr int kGarbagePeers = 20;

TEST(HostilePeerTest, GarbageAndSilenceAtEveryPortLeaveTheRunAlone) {
  RunHarness run(EndlessRun());
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  RunWatch watch(&run);
  for (int64_t rollouter : {0, 1}) ASSERT_THAT(watch.AwaitWork(rollouter), IsOk());
  const std::vector<std::pair<std::string, int64_t>> daemons = {
      {"synchronizer", 0}, {"trainer", 0}, {"rollouter", 0}, {"rollouter", 1}};
  Dice dice(7);
  std::vector<std::unique_ptr<HostilePeer>> mute;
  for (const auto& [role, index] : daemons) {
    SCOPED_TRACE(absl::StrCat(role, "-", index));
    auto endpoint = run.Endpoint(role, index);
    ASSERT_THAT(endpoint, IsOk());
    for (const std::string& address : {endpoint->grpc, endpoint->metrics}) {
      for (int i = 0; i < kMutePeers; ++i) {
        mute.push_back(std::make_unique<HostilePeer>(address));
        EXPECT_TRUE(mute.back()->connected()) << address;
      }
      for (int i = 0; i < kGarbagePeers; ++i) {
        HostilePeer peer(address);
        EXPECT_TRUE(peer.connected()) << address;
        peer.Send(Garbage(dice));
      }
    }
    // While all these peers are connected, the daemon answers well-formed calls.
    EXPECT_THAT(HttpGet(endpoint->metrics, "/metrics"), IsOk());
  }
  ASSERT_THAT(watch.AwaitMoreSteps(20), IsOk());
  EXPECT_THAT(watch.Members(), IsOk());

  // The daemon closes the connection of a peer that sends too little.
  auto trainer = run.Endpoint("trainer");
  ASSERT_THAT(trainer, IsOk());
  HostilePeer slow(trainer->metrics);
  slow.Send("GET /metr");
  EXPECT_TRUE(slow.WaitClosed(absl::Seconds(20)));

  ASSERT_THAT(watch.Stop(), IsOk());
  auto exit = (*process)->WaitExit(kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 0) << (*process)->Log();
  const Json restarts = run.Summary()["run"]["restarts"];
  for (const auto& [role, index] : daemons) EXPECT_EQ(restarts[absl::StrCat(role, "-", index)], 0);
  EXPECT_THAT(Judge(run), IsClean());
}

}  // namespace
}  // namespace syncopate::testing::hostile_peer_test
