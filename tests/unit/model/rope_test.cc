#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace syncopate::model {
namespace {

std::vector<float> Frequencies(int64_t head_dim, double theta) {
  std::vector<float> frequencies;
  for (int64_t i = 0; i < head_dim; i += 2) {
    frequencies.push_back(static_cast<float>(std::pow(theta, -static_cast<double>(i) / static_cast<double>(head_dim))));
  }
  return frequencies;
}

std::vector<float> Scaled(const RopeScaling& scaling, int64_t head_dim = 128, double theta = 5e5) {
  std::vector<float> frequencies = Frequencies(head_dim, theta);
  ScaleFrequencies(scaling, theta, absl::MakeSpan(frequencies));
  return frequencies;
}

TEST(RopeTest, DefaultChangesNothing) { EXPECT_EQ(Scaled({}), Frequencies(128, 5e5)); }

TEST(RopeTest, LinearStretchesEveryWaveByTheSameFactor) {
  const std::vector<float> plain = Frequencies(128, 5e5);
  const std::vector<float> scaled = Scaled({.type = RopeScaling::Type::kLinear, .factor = 4});
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_FLOAT_EQ(scaled[i], plain[i] / 4);
}

// The numbers of Llama 3.1: wavelengths below 8192 / 4 tokens stay, those above 8192 become 8 times as long.
TEST(RopeTest, Llama3StretchesLongWavesOnly) {
  const std::vector<float> plain = Frequencies(128, 5e5);
  const std::vector<float> scaled = Scaled({.type = RopeScaling::Type::kLlama3,
                                            .factor = 8,
                                            .original_context = 8192,
                                            .low_freq_factor = 1,
                                            .high_freq_factor = 4});
  int kept = 0, stretched = 0;
  for (size_t i = 0; i < plain.size(); ++i) {
    const double wave = 2 * M_PI / plain[i];
    if (wave < 2048) {
      EXPECT_EQ(scaled[i], plain[i]);
      ++kept;
    } else if (wave > 8192) {
      EXPECT_FLOAT_EQ(scaled[i], plain[i] / 8);
      ++stretched;
    } else {
      EXPECT_GT(scaled[i], plain[i] / 8);
      EXPECT_LT(scaled[i], plain[i]);
    }
  }
  EXPECT_EQ(kept, 29);
  EXPECT_EQ(stretched, 29);
}

TEST(RopeTest, YarnGoesFromPlainToStretched) {
  const std::vector<float> plain = Frequencies(128, 1e6);
  const std::vector<float> scaled =
      Scaled({.type = RopeScaling::Type::kYarn, .factor = 4, .original_context = 32768}, 128, 1e6);
  EXPECT_EQ(scaled.front(), plain.front());
  EXPECT_FLOAT_EQ(scaled.back(), plain.back() / 4);
  double last = 1;
  for (size_t i = 0; i < plain.size(); ++i) {
    const double ratio = scaled[i] / plain[i];
    EXPECT_LE(ratio, last + 1e-6);
    last = ratio;
  }
}

TEST(RopeTest, YarnsFactorOfAttention) {
  EXPECT_EQ(YarnAttentionFactor(1, 0, 0), 1);
  EXPECT_NEAR(YarnAttentionFactor(4, 0, 0), 1.1386294361, 1e-9);
  EXPECT_EQ(YarnAttentionFactor(40, 1, 1), 1);
}

}  // namespace
}  // namespace syncopate::model
