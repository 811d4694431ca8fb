#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <string>

namespace syncopate {
namespace {

TEST(Crc32cTest, GivesThePublishedValues) {  // RFC 3720 B.4
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
}

TEST(Crc32cTest, IsTheSameByInstructionByTableAndInPieces) {
  std::string bytes;
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(Crc32c(bytes), Crc32cPortable(bytes)) << i;
    size_t cut = bytes.size() / 3;
    EXPECT_EQ(Crc32c(bytes.substr(cut), Crc32c(bytes.substr(0, cut))), Crc32c(bytes)) << i;
    bytes.push_back(static_cast<char>(i * 37));
  }
}

}  // namespace
}  // namespace syncopate
