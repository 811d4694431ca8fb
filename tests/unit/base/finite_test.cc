#include "base/finite.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

namespace syncopate {
namespace {

template <typename Word>
std::optional<int64_t> Find(const std::vector<Word>& numbers, Word exponent) {
  // Not aligned.
  std::string bytes(numbers.size() * sizeof(Word) + 1, '\0');
  std::memcpy(bytes.data() + 1, numbers.data(), numbers.size() * sizeof(Word));
  return FindNonFinite(bytes.data() + 1, static_cast<int64_t>(numbers.size()), exponent);
}

TEST(FindNonFiniteTest, Each16BitPatternIsFoundIfAllBitsOfItsExponentAreSetAndOnlyThen) {
  for (const uint16_t exponent : {kBFloat16Exponent, kFloat16Exponent}) {
    for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
      // Four that are looked at together, and one alone.
      const auto number = static_cast<uint16_t>(bits);
      const std::vector<uint16_t> numbers = {number, number, number, number, number};
      const bool bad = (bits & exponent) == exponent;
      ASSERT_EQ(Find(numbers, exponent), bad ? std::optional<int64_t>(0) : std::nullopt) << bits;
    }
  }
}

template <typename Word>
void ExpectFoundInEachPlace(Word exponent, const std::vector<Word>& bad, const std::vector<Word>& others) {
  for (size_t count = 0; count <= 19; ++count) {
    for (const Word other : others) {
      std::vector<Word> numbers(count, other);
      ASSERT_EQ(Find(numbers, exponent), std::nullopt) << count;
      for (size_t at = 0; at < count; ++at) {
        for (const Word one : bad) {
          numbers.assign(count, other);
          numbers[at] = one;
          ASSERT_EQ(Find(numbers, exponent), static_cast<int64_t>(at)) << one << " beside " << other;
          numbers.back() = one;
          ASSERT_EQ(Find(numbers, exponent), static_cast<int64_t>(at)) << "the first of two";
        }
      }
    }
  }
}

TEST(FindNonFiniteTest, NaNAndInfinityAreFoundInEachPlaceBesideTheLargestAndTheSmallestNumbers) {
  ExpectFoundInEachPlace<uint16_t>(kBFloat16Exponent, {0x7f80, 0xff80, 0x7fc0, 0xffff}, {0, 0x8000, 0x7f7f, 0xff7f, 1});
  ExpectFoundInEachPlace<uint16_t>(kFloat16Exponent, {0x7c00, 0xfc00, 0x7e00, 0xffff}, {0, 0x8000, 0x7bff, 0xfbff, 1});
  ExpectFoundInEachPlace<uint32_t>(kFloat32Exponent, {0x7f800000, 0xff800000, 0x7fc00000, 0xffffffff},
                                   {0, 0x80000000, 0x7f7fffff, 0xff7fffff, 1});
}

}  // namespace
}  // namespace syncopate
