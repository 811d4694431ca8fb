#include "synchronizer/attempts/transport_choice.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/synchronizer_fixtures.h"

namespace syncopate::synchronizer {
namespace {

using ::testing::HasSubstr;

const std::vector<std::string> kAll = {"ipc", "nccl", "grpc"};

// A member on a GPU of host `host`; all GPUs of a host are connected by NVLink.
SyncPeer OnGpu(MemberId id, const std::string& host, const std::string& gpu, const std::string& nccl = "2.28.9") {
  return {std::move(id), kAll, {host, host + gpu, {host + "a", host + "b", host + "c"}, true, nccl}};
}

SyncPeer OnCpu(MemberId id) { return {std::move(id), {"grpc"}, {"h", "", {}, false, ""}}; }

TEST(TransportChoiceTest, ANameThatIsNoTransportIsRefused) {
  auto choice = ChooseTransport("rdma", {OnCpu(TrainerId("t"))}, {OnCpu(RollouterId(1, "r"))});
  EXPECT_EQ(ErrorReason(choice.status()), "NO_COMMON_TRANSPORT");
  EXPECT_THAT(std::string(choice.status().message()), HasSubstr("there is no such transport"));
}

TEST(TransportChoiceTest, OneHostWithPeerAccessUsesIpc) {
  auto choice = ChooseTransport("auto", {OnGpu(TrainerId("t"), "h", "a")}, {OnGpu(RollouterId(0, "r"), "h", "b")});
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->name, "ipc");
  EXPECT_EQ(choice->reason, "one host, peer access, NVLink");
}

TEST(TransportChoiceTest, TwoHostsUseNcclAndSayWhyNotIpc) {
  auto choice = ChooseTransport("auto", {OnGpu(TrainerId("t"), "h", "a")}, {OnGpu(RollouterId(0, "r"), "k", "b")});
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->name, "nccl");
  EXPECT_EQ(choice->reason,
            "members on 2 hosts, NCCL 2.28.9 everywhere; not ipc: trainer and rollouter-0 are on different hosts");
}

TEST(TransportChoiceTest, WithoutPeerAccessOneHostUsesNccl) {
  SyncPeer receiver = OnGpu(RollouterId(0, "r"), "h", "b");
  receiver.facts.peer_gpus.clear();
  auto choice = ChooseTransport("auto", {OnGpu(TrainerId("t"), "h", "a")}, {receiver});
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->name, "nccl");
  EXPECT_THAT(choice->reason, HasSubstr("rollouter-0 has no peer access to the GPU of trainer"));
}

TEST(TransportChoiceTest, AMemberWithoutAGpuOrWithAnotherNcclMeansGrpc) {
  auto cpu = ChooseTransport("auto", {OnGpu(TrainerId("t"), "h", "a")}, {OnCpu(RollouterId(1, "r"))});
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  EXPECT_EQ(cpu->name, "grpc");
  EXPECT_THAT(cpu->reason, HasSubstr("rollouter-1 does not offer ipc"));
  auto versions =
      ChooseTransport("auto", {OnGpu(TrainerId("t"), "h", "a")}, {OnGpu(RollouterId(0, "r"), "k", "b", "2.27.1")});
  ASSERT_TRUE(versions.ok()) << versions.status();
  EXPECT_EQ(versions->name, "grpc");
}

TEST(TransportChoiceTest, MembersThatOnlyHaveCpusUseGrpcForNoParticularReason) {
  auto choice = ChooseTransport("auto", {OnCpu(TrainerId("t"))}, {OnCpu(RollouterId(1, "r"))});
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->name, "grpc");
  EXPECT_EQ(choice->reason, "all members offer it");
}

TEST(TransportChoiceTest, WhatTheConfigurationAsksForIsUsedUnlessAFactContradicts) {
  SyncPeer bare = {RollouterId(0, "r"), kAll};
  EXPECT_EQ(ChooseTransport("nccl", {OnGpu(TrainerId("t"), "h", "a")}, {bare})->name, "nccl");
  auto versions =
      ChooseTransport("nccl", {OnGpu(TrainerId("t"), "h", "a")}, {OnGpu(RollouterId(0, "r"), "h", "b", "2.27.1")});
  EXPECT_THAT(versions.status(), HasReason("NCCL_MISMATCH"));
  EXPECT_THAT(std::string(versions.status().message()),
              HasSubstr("NCCL is 2.28.9 at trainer and 2.27.1 at rollouter-0"));
  auto hosts = ChooseTransport("ipc", {OnGpu(TrainerId("t"), "h", "a")}, {OnGpu(RollouterId(0, "r"), "k", "b")});
  EXPECT_THAT(hosts.status(), HasReason("NO_COMMON_TRANSPORT"));
  EXPECT_THAT(ChooseTransport("ipc", {OnCpu(TrainerId("t"))}, {OnCpu(RollouterId(0, "r"))}).status(),
              HasReason("NO_COMMON_TRANSPORT"));
}

}  // namespace
}  // namespace syncopate::synchronizer
