#include "ranks/mesh.h"

#include <gtest/gtest.h>

#include "ranks/thread_ranks.h"

namespace syncopate {
namespace {

TEST(MeshTest, WithoutACommunicatorIsOneProcess) {
  const Mesh mesh;
  EXPECT_EQ(mesh.rank(), 0);
  EXPECT_EQ(mesh.world(), 1);
  double sum = 3;
  EXPECT_TRUE(mesh.along(Mesh::Axis::kShard).AllReduceSum(absl::MakeSpan(&sum, 1)).ok());
  EXPECT_EQ(sum, 3);
}

TEST(MeshTest, HasTheRanksOfItsAxis) {
  const auto ranks = MakeThreadRanks(3, absl::Seconds(20));
  const Mesh mesh = *ranks[2];
  EXPECT_EQ(mesh.rank(), 2);
  EXPECT_EQ(mesh.world(), 3);
  EXPECT_EQ(&mesh.along(Mesh::Axis::kShard), ranks[2].get());
}

}  // namespace
}  // namespace syncopate
