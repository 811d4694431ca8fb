#include "services/bench/host_send_store.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "tests/support/status_matchers.h"

namespace syncopate::services {
namespace {

using ::syncopate::testing::HasReason;

constexpr int64_t kBytes = 1024;

class HostSendStoreTest : public ::testing::Test {
 protected:
  void Stage(int64_t step) {
    store_.Stage({1, step}, [step](char* arena) { std::memset(arena, static_cast<int>(step), kBytes); });
  }
  static char ByteOf(synchronizer::WeightReader* reader) {
    char byte = 0;
    EXPECT_TRUE(reader->Read({kBytes - 1, kBytes}, &byte).ok());
    return byte;
  }

  HostSendStore store_{7, kBytes};
};

TEST_F(HostSendStoreTest, KeepsTheLastTwoVersions) {
  for (int64_t step : {1, 2, 3}) Stage(step);
  EXPECT_THAT(store_.Open({1, 1}), HasReason("VERSION_NOT_STAGED"));
  EXPECT_EQ(ByteOf(store_.Open({1, 2})->get()), 2);
  EXPECT_EQ(ByteOf(store_.Open({1, 3})->get()), 3);
  EXPECT_THAT(store_.Open({2, 3}), HasReason("VERSION_NOT_STAGED"));
}

TEST_F(HostSendStoreTest, AReaderKeepsItsVersionWhateverIsStagedAfter) {
  Stage(1);
  auto reader = store_.Open({1, 1});
  ASSERT_TRUE(reader.ok());
  for (int64_t step = 2; step < 8; ++step) Stage(step);
  EXPECT_EQ(ByteOf(reader->get()), 1);
}

TEST_F(HostSendStoreTest, RefusesBytesOutsideTheArena) {
  Stage(1);
  std::vector<char> to(2 * kBytes);
  auto reader = store_.Open({1, 1});
  ASSERT_TRUE(reader.ok());
  for (ByteRange bad : {ByteRange{-1, 5}, ByteRange{0, kBytes + 1}, ByteRange{8, 4}}) {
    EXPECT_THAT((*reader)->Read(bad, to.data()), HasReason("BAD_RANGE"));
  }
}

}  // namespace
}  // namespace syncopate::services
