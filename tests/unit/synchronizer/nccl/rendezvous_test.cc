#include "synchronizer/nccl/rendezvous.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/synchronizer_fixtures.h"

namespace syncopate::synchronizer::nccl {
namespace {

using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;
using ::testing::HasSubstr;

UniqueId GetId(char fill) {
  UniqueId id{};
  id.fill(fill);
  return id;
}

SyncMember Source(int rank, int version, const std::string& gpu, const std::string& kept = "g") {
  return {TrainerId("t", rank, 2), Rendezvous{version, gpu, kept, {}}.ToString()};
}

TEST(NcclRendezvousTest, SurvivesItsText) {
  for (const Rendezvous& rendezvous : {Rendezvous{22809, "GPU-1", "", {}},
                                       Rendezvous{22809, "GPU-1", "00ff", {GetId('\0'), GetId('\xff'), GetId('x')}}}) {
    absl::StatusOr<Rendezvous> parsed = Rendezvous::Parse(rendezvous.ToString());
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, rendezvous);
  }
}

TEST(NcclRendezvousTest, RefusesWhatIsNone) {
  for (const std::string& text :
       {std::string(), std::string("nccl1"), std::string("nccl2 22809 GPU-1"), std::string("nccl1 x GPU-1"),
        std::string("nccl1 22809  -"), std::string("nccl1 22809 GPU-1 - abcd"), std::string("nccl1 22809 GPU-1"),
        "nccl1 22809 GPU-1 - " + std::string(256, 'g'), std::string("host:80")}) {
    EXPECT_THAT(Rendezvous::Parse(text).status(), HasReason("BAD_RENDEZVOUS")) << text;
  }
}

TEST(NcclRendezvousTest, MembersWithOneVersionAndAGpuEachMayMeet) {
  EXPECT_THAT(CheckMembers({Source(0, 22809, "GPU-1"), Source(1, 22809, "GPU-2")}, {Source(2, 22809, "GPU-3")}, "g"),
              IsOk());
}

TEST(NcclRendezvousTest, DifferentVersionsAreRefusedByName) {
  absl::Status status = CheckMembers({Source(0, 22809, "GPU-1")}, {Source(1, 22702, "GPU-2")}, "g");
  EXPECT_THAT(status, HasReason("NCCL_MISMATCH"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("trainer rank 1 has NCCL 2.27.2, trainer rank 0 has 2.28.9"));
}

TEST(NcclRendezvousTest, TwoMembersOnOneGpuAreRefusedByName) {
  absl::Status status = CheckMembers({Source(0, 22809, "GPU-1")}, {Source(1, 22809, "GPU-1")}, "g");
  EXPECT_THAT(status, HasReason("DUPLICATE_GPU"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("trainer rank 0 and trainer rank 1"));
}

TEST(NcclRendezvousTest, AGroupThatOneMemberHasLostIsLostToAllUnlessNewIdsAreThere) {
  std::vector<SyncMember> sources = {Source(0, 22809, "GPU-1")};
  absl::Status status = CheckMembers(sources, {Source(1, 22809, "GPU-2", "")}, "g");
  EXPECT_THAT(status, HasReason("GROUP_LOST"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("trainer rank 1"));
  EXPECT_THAT(CheckMembers(sources, {Source(1, 22809, "GPU-2", "another")}, "g"), HasReason("GROUP_LOST"));
  sources[0].rendezvous = Rendezvous{22809, "GPU-1", "g", {GetId('i')}}.ToString();
  EXPECT_THAT(CheckMembers(sources, {Source(1, 22809, "GPU-2", "")}, "g"), IsOk());
}

TEST(NcclRendezvousTest, BaseWeightsForSomeReceiversAloneAreRefused) {
  SyncMember adapters_alone = Source(2, 22809, "GPU-3");
  adapters_alone.base = false;
  EXPECT_THAT(CheckMembers({Source(0, 22809, "GPU-1")}, {Source(1, 22809, "GPU-2"), adapters_alone}, "g"),
              HasReason("MIXED_PAYLOAD"));
  EXPECT_THAT(CheckMembers({Source(0, 22809, "GPU-1")}, {adapters_alone}, "g"), IsOk());
}

TEST(NcclRendezvousTest, AMemberWithoutARendezvousIsRefusedByName) {
  absl::Status status = CheckMembers({Source(0, 22809, "GPU-1")}, {{TrainerId("t", 1, 2), ""}}, "g");
  EXPECT_THAT(status, HasReason("BAD_RENDEZVOUS"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("trainer rank 1"));
}

}  // namespace
}  // namespace syncopate::synchronizer::nccl
