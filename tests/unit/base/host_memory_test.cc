#include "base/host_memory.h"

#include <gtest/gtest.h>

namespace syncopate {
namespace {

constexpr char kMeminfo[] =
    "MemTotal:       1000 kB\n"
    "MemFree:          10 kB\n"
    "MemAvailable:    600 kB\n";

TEST(HostMemoryTest, WithoutALimitItIsTheMachines) {
  const HostMemory memory =
      GetHostMemory({.meminfo = kMeminfo, .group_max = "max\n", .group_current = "5\n", .group_stat = ""});
  EXPECT_EQ(memory.bytes, 1000 * 1024);
  EXPECT_EQ(memory.available, 600 * 1024);
}

TEST(HostMemoryTest, AControlGroupLimitsBoth) {
  const HostMemory memory =
      GetHostMemory({.meminfo = kMeminfo, .group_max = "204800\n", .group_current = "104800\n", .group_stat = ""});
  EXPECT_EQ(memory.bytes, 204800);
  EXPECT_EQ(memory.available, 100000);
}

TEST(HostMemoryTest, FilesThatNobodyUsesAreAvailable) {
  const HostMemory memory = GetHostMemory({.meminfo = kMeminfo,
                                           .group_max = "204800\n",
                                           .group_current = "204800\n",
                                           .group_stat = "anon 4800\nactive_file 1\ninactive_file 50000\n"});
  EXPECT_EQ(memory.available, 50000);
}

TEST(HostMemoryTest, AGroupThatIsOverItsLimitHasNothing) {
  EXPECT_EQ(
      GetHostMemory({.meminfo = kMeminfo, .group_max = "100", .group_current = "200", .group_stat = ""}).available, 0);
}

TEST(HostMemoryTest, ThisMachineHasSome) {
  const HostMemory memory = ReadHostMemory();
  EXPECT_GT(memory.available, 0);
  EXPECT_LE(memory.available, memory.bytes);
}

}  // namespace
}  // namespace syncopate
