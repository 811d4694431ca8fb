#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <string>

#include "base/crc32c.h"
#include "base/sha256.h"
#include "base/uuid.h"
#include "tests/support/status_matchers.h"

namespace syncopate {
namespace {

using ::testing::MatchesRegex;

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

TEST(Sha256Test, GivesThePublishedValues) {  // FIPS 180-4 examples
  EXPECT_EQ(Sha256Hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha256Hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Sha256Test, DoesNotDependOnHowTheBytesArePieced) {
  Sha256 hash;
  hash.Update("a");
  hash.Update("");
  hash.Update("bc");
  EXPECT_EQ(hash.FinishHex(), Sha256Hex("abc"));
}

TEST(UuidTest, IsARandomVersionFourUuid) {
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) {
    std::string uuid = RandomUuid();
    ASSERT_THAT(uuid, MatchesRegex("[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"));
    EXPECT_TRUE(seen.insert(uuid).second);
  }
}

}  // namespace
}  // namespace syncopate
