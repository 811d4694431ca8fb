#include "base/manifest.h"

#include <gtest/gtest.h>

#include <vector>

namespace syncopate {
namespace {

TEST(ManifestTest, HasOnlyATypeIfEachTensorHasIt) {
  const TensorSpec full{.name = "a", .dtype = DType::kFloat32, .shape = {3}};
  const TensorSpec half{.name = "b", .dtype = DType::kBFloat16, .shape = {3}};
  const TensorSpec other_half{.name = "c", .dtype = DType::kBFloat16, .shape = {3}};
  EXPECT_TRUE(Manifest::Create({half, other_half})->HasOnly(DType::kBFloat16));
  EXPECT_FALSE(Manifest::Create({half, other_half})->HasOnly(DType::kFloat32));
  for (const std::vector<TensorSpec>& mixed : {std::vector<TensorSpec>{full, half}, {half, full}}) {
    EXPECT_FALSE(Manifest::Create(mixed)->HasOnly(DType::kBFloat16));
    EXPECT_FALSE(Manifest::Create(mixed)->HasOnly(DType::kFloat32));
  }
}

}  // namespace
}  // namespace syncopate
