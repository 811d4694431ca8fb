#include "model/cuda/matmul.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "model/cuda/matmul_trial.h"
#include "tests/gpu/gpu_support.h"

namespace syncopate::model {
namespace {

struct Kind {
  const char* name;
  MatmulShape shape;
};

class MatmulOnGpu : public ::testing::TestWithParam<Kind> {
 protected:
  MatmulShape GetShape(int32_t rows) const {
    MatmulShape shape = GetParam().shape;
    shape.rows = rows;
    return shape;
  }
};
INSTANTIATE_TEST_SUITE_P(
    Products, MatmulOnGpu,
    ::testing::Values(
        Kind{"Qkv", {.n = 1152, .k = 896, .bias = true, .bit_identical_rows = true}},
        Kind{"Down", {.n = 896, .k = 4864, .accumulate = true, .bit_identical_rows = true}},
        Kind{"GateUp", {.n = 37888, .k = 3584, .bit_identical_rows = true}},
        Kind{"Head", {.n = 1003, .k = 512, .float32_result = true, .result_stride = 1008, .bit_identical_rows = true}}),
    [](const auto& info) { return std::string(info.param.name); });

// The inputs of a trial and its products.
struct Bench {
  cuda::DeviceBuffer workspace = cuda::DeviceBuffer::Create(0, MatmulLibrary::kWorkspaceBytes, "workspace").value();
  MatmulLibrary library = MatmulLibrary::Create(workspace.data()).value();
  cuda::Stream stream = cuda::Stream::Create(0).value();

  uint64_t Digest(Matmul product, const MatmulTrial& trial) {
    const MatmulOperands operands = trial.MakeUp(product.shape()).value();
    EXPECT_TRUE(product.Queue(operands, stream.get()).ok());
    return trial.DigestResult(product.shape()).value();
  }
};

TEST_P(MatmulOnGpu, AlgorithmsThatPassTheTrialAreBitIdenticalToTheReference) {
  SYNCOPATE_NEED_GPUS(1);
  Bench bench;
  const std::vector<int32_t> sizes = {1, 16, 64, 192, 256, 1024, 4096};
  MatmulTrial::Extent extent;
  for (int32_t rows : sizes) extent.Include(GetShape(rows));
  const MatmulTrial trial = MatmulTrial::Create(0, extent, bench.stream.get()).value();
  const Matmul pattern = Matmul::Create(bench.library, GetShape(256)).value();
  for (int32_t rows : sizes) {
    EXPECT_EQ(bench.Digest(Matmul::CreateBitIdentical(bench.library, GetShape(rows), pattern, trial).value(), trial),
              bench.Digest(Matmul::CreateWithReference(bench.library, GetShape(rows), pattern).value(), trial))
        << rows << " rows";
  }
}

// If allowed, the library splits the long sums of a few rows over several blocks.
TEST(MatmulTrialOnGpu, TellsSumsThatAreCutFromThoseThatAreNot) {
  SYNCOPATE_NEED_GPUS(1);
  Bench bench;
  MatmulShape shape = {.rows = 16, .n = 896, .k = 18944};
  MatmulTrial::Extent extent;
  extent.Include(shape);
  const MatmulTrial trial = MatmulTrial::Create(0, extent, bench.stream.get()).value();
  const uint64_t cut = bench.Digest(Matmul::Create(bench.library, shape).value(), trial);
  EXPECT_EQ(cut, bench.Digest(Matmul::Create(bench.library, shape).value(), trial))
      << "one algorithm is not bit-identical";
  shape.bit_identical_rows = true;
  EXPECT_NE(cut, bench.Digest(Matmul::Create(bench.library, shape).value(), trial));
}

}  // namespace
}  // namespace syncopate::model
