#include "base/digest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>

namespace syncopate {
namespace {

std::string RandomBytes(size_t size) {
  std::mt19937 random(static_cast<uint32_t>(size));
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

TEST(PartsDigestTest, IsThatOfTheWholeWhereverItIsCut) {
  for (const size_t size : {0, 5, 8, 64, 1000, 1001}) {
    const std::string bytes = RandomBytes(size);
    const uint64_t whole = DigestBytes(bytes.data(), static_cast<int64_t>(size));
    for (const size_t part : {8, 24, 512, 2000}) {
      PartsDigest digest;
      for (size_t begin = 0; begin < size; begin += part) {
        digest.Add(bytes.data() + begin, static_cast<int64_t>(std::min(part, size - begin)));
      }
      EXPECT_EQ(digest.Finish(), whole) << size << " bytes in parts of " << part;
    }
  }
}

TEST(PartsDigestTest, TellsAFlipAnExchangeAndALengthApart) {
  const std::string bytes = RandomBytes(64);
  const auto digest = [](const std::string& of) { return DigestBytes(of.data(), static_cast<int64_t>(of.size())); };
  std::string flipped = bytes, exchanged = bytes;
  flipped[40] ^= 1;
  std::swap_ranges(exchanged.begin(), exchanged.begin() + 8, exchanged.begin() + 32);
  EXPECT_NE(digest(flipped), digest(bytes));
  EXPECT_NE(digest(exchanged), digest(bytes));
  EXPECT_NE(digest(bytes + '\0'), digest(bytes));
}

TEST(PartsDigestDeathTest, OnlyTheLastPartMayEndWithinAWord) {
  PartsDigest digest;
  digest.Add("12345", 5);
  EXPECT_DEATH(digest.Add("6", 1), "");
}

}  // namespace
}  // namespace syncopate
