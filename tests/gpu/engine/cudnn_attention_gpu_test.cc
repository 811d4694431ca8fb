#include "model/cuda/cudnn_attention.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/cuda/CUDAStream.h>
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "base/status.h"
#include "model/ops.h"
#include "tests/gpu/gpu_support.h"
#include "tests/support/op_cases.h"

namespace syncopate::model {
namespace {

using synchronizer::WhyTooFewGpus;
using syncopate::testing::RelativeDifference;

const at::Device kGpu(at::kCUDA, 0);

struct Case {
  int64_t heads = 14;
  int64_t kv_heads = 2;
  int64_t head_dim = 64;
  std::vector<int64_t> lengths = {300, 1, 129};

  int64_t rows() const {
    int64_t sum = 0;
    for (int64_t length : lengths) sum += length;
    return sum;
  }
};

const Case kCases[] = {
    {},
    {.heads = 12, .kv_heads = 2, .head_dim = 128, .lengths = {1, 63, 64, 65, 127, 128, 192, 320, 5, 1}},
    {.heads = 28, .kv_heads = 4, .head_dim = 128, .lengths = {65, 64}},
    {.heads = 8, .kv_heads = 8, .head_dim = 64, .lengths = {1}},
    {.heads = 3, .kv_heads = 3, .head_dim = 128, .lengths = {700, 2, 700, 3, 129}},
    {.heads = 4, .kv_heads = 1, .head_dim = 64, .lengths = {2049, 17}},
};

// Drawn on the CPU in float32, with numbers that bfloat16 can represent.
struct Drawn {
  at::Tensor qkv, dy;
};
Drawn Draw(const Case& one) {
  at::manual_seed(5);
  auto draw = [](at::IntArrayRef shape) { return at::randn(shape, at::kFloat).to(at::kBFloat16).to(at::kFloat); };
  return {draw({one.rows(), (one.heads + 2 * one.kv_heads) * one.head_dim}),
          draw({one.rows(), one.heads * one.head_dim})};
}

struct Results {
  at::Tensor y, dqkv;
  bool by_cudnn = false;
};
Results Attend(const Ops& ops, const Case& one, const Drawn& drawn, at::Device device, at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  const PackedSequences sequences(one.lengths, device);
  const at::Tensor qkv = drawn.qkv.to(device, dtype);
  const Ops::Attended forward = ops.Attend(qkv, {one.heads, one.kv_heads}, sequences);
  return {forward.y, ops.AttendBackward(drawn.dy.to(device, dtype), qkv, forward, {one.heads, one.kv_heads}, sequences),
          forward.stats.size() == 1};
}

// The rows of sequence `index`.
at::Tensor GetRows(const at::Tensor& tensor, const Case& one, size_t index) {
  int64_t begin = 0;
  for (size_t i = 0; i < index; ++i) begin += one.lengths[i];
  return tensor.narrow(0, begin, one.lengths[index]);
}

AttentionInputs MakeInputs(const Case& one, const at::Tensor& qkv, const PackedSequences& sequences) {
  const char* data = static_cast<const char*>(qkv.const_data_ptr());
  return {.heads = static_cast<int32_t>(one.heads),
          .kv_heads = static_cast<int32_t>(one.kv_heads),
          .head_dim = static_cast<int32_t>(one.head_dim),
          .sequences = static_cast<int32_t>(one.lengths.size()),
          .starts = sequences.starts().const_data_ptr<int32_t>(),
          .rows = one.rows(),
          .longest = sequences.longest(),
          .queries = data,
          .keys = data + 2 * one.heads * one.head_dim,
          .values = data + 2 * (one.heads + one.kv_heads) * one.head_dim,
          .query_stride = qkv.size(1),
          .key_stride = qkv.size(1)};
}

absl::Status Forward(const AttentionInputs& inputs, const AttentionOutputs& outputs) {
  at::Tensor scratch;
  const auto lend = [&](int64_t bytes) {
    scratch = at::empty({bytes}, at::TensorOptions(kGpu).dtype(at::kByte));
    return scratch.mutable_data_ptr();
  };
  return CudnnAttention::On(0).Forward(inputs, outputs, lend, c10::cuda::getCurrentCUDAStream(0).stream());
}

TEST(CudnnAttentionTest, GivesTheResultsOfFloat32WithinTheRoundingOfBFloat16) {
  SYNCOPATE_NEED_GPUS(1);
  for (const Case& one : kCases) {
    SCOPED_TRACE(::testing::Message() << one.heads << " heads of " << one.head_dim << ", " << one.rows() << " rows");
    const Drawn drawn = Draw(one);
    const Results expected = Attend(AtenOps(), one, drawn, at::kCPU, at::kFloat);
    const Results actual = Attend(OpsFor(kGpu), one, drawn, kGpu, at::kBFloat16);
    EXPECT_TRUE(actual.by_cudnn);
    EXPECT_LT(RelativeDifference(actual.y, expected.y), 1e-2);
    EXPECT_LT(RelativeDifference(actual.dqkv, expected.dqkv), 2e-2);
  }
}

TEST(CudnnAttentionTest, AttentionOfASequenceDependsOnNoOtherOne) {
  SYNCOPATE_NEED_GPUS(1);
  for (const Case& all : kCases) {
    const Drawn drawn = Draw(all);
    const Results together = Attend(OpsFor(kGpu), all, drawn, kGpu, at::kBFloat16);
    for (size_t i = 0; i < all.lengths.size(); ++i) {
      Case one = all;
      one.lengths = {all.lengths[i]};
      const Results alone =
          Attend(OpsFor(kGpu), one, {GetRows(drawn.qkv, all, i), GetRows(drawn.dy, all, i)}, kGpu, at::kBFloat16);
      EXPECT_LT(RelativeDifference(GetRows(together.y, all, i), alone.y), 1e-2) << "length " << all.lengths[i];
      EXPECT_LT(RelativeDifference(GetRows(together.dqkv, all, i), alone.dqkv), 1e-2) << "length " << all.lengths[i];
    }
  }
}

// Copies rows to the GPU, followed by NaN.
at::Tensor BeforeNan(const at::Tensor& rows) {
  const at::Tensor memory = at::full({rows.size(0) + 512, rows.size(1)}, std::nan(""), rows.options());
  memory.narrow(0, 0, rows.size(0)).copy_(rows);
  return memory.to(kGpu, at::kBFloat16).narrow(0, 0, rows.size(0));
}

// Tiles of keys and values reach beyond the last row, and 0 times NaN is NaN.
TEST(CudnnAttentionTest, WhatLiesBehindTheLastRowIsNotUsed) {
  SYNCOPATE_NEED_GPUS(1);
  const at::NoGradGuard no_grad;
  for (const Case& one : kCases) {
    const Drawn drawn = Draw(one);
    const Results expected = Attend(OpsFor(kGpu), one, drawn, kGpu, at::kBFloat16);
    const at::Tensor qkv = BeforeNan(drawn.qkv);
    const PackedSequences sequences(one.lengths, kGpu);
    const Ops::Attended forward = OpsFor(kGpu).Attend(qkv, {one.heads, one.kv_heads}, sequences);
    EXPECT_TRUE(forward.y.equal(expected.y)) << one.rows() << " rows";
    const at::Tensor dqkv =
        OpsFor(kGpu).AttendBackward(BeforeNan(drawn.dy), qkv, forward, {one.heads, one.kv_heads}, sequences);
    EXPECT_LT(RelativeDifference(dqkv, expected.dqkv), 1e-2) << one.rows() << " rows";
  }
}

TEST(CudnnAttentionTest, WithoutStatisticsItGivesTheSame) {
  SYNCOPATE_NEED_GPUS(1);
  const Case one = kCases[1];
  const at::Tensor qkv = Draw(one).qkv.to(kGpu, at::kBFloat16);
  const PackedSequences sequences(one.lengths, kGpu);
  at::Tensor y = at::empty({one.rows(), one.heads * one.head_dim}, qkv.options());
  const absl::Status status = Forward(MakeInputs(one, qkv, sequences), {.attended = y.mutable_data_ptr()});
  ASSERT_TRUE(status.ok()) << status.message();
  const at::Tensor expected = OpsFor(kGpu).Attend(qkv, {one.heads, one.kv_heads}, sequences).y;
  EXPECT_LT(RelativeDifference(y, expected), 1e-2);
}

TEST(CudnnAttentionTest, QueriesThatGoOnFromEarlierKeysAttendToAllOfThem) {
  SYNCOPATE_NEED_GPUS(1);
  const std::vector<int64_t> newest = {100, 1, 129, 37};
  for (const auto& [heads, kv_heads, head_dim] : {std::tuple(14, 2, 64), {12, 2, 128}}) {
    const Case one{.heads = heads, .kv_heads = kv_heads, .head_dim = head_dim, .lengths = {300, 1, 129, 700}};
    const at::Tensor qkv = Draw(one).qkv;
    const at::Tensor y = AtenOps().Attend(qkv, {heads, kv_heads}, PackedSequences(one.lengths)).y;
    std::vector<at::Tensor> queries, expected;
    for (size_t i = 0; i < newest.size(); ++i) {
      const int64_t before = one.lengths[i] - newest[i];
      queries.push_back(GetRows(qkv, one, i).narrow(0, before, newest[i]).narrow(1, 0, heads * head_dim));
      expected.push_back(GetRows(y, one, i).narrow(0, before, newest[i]));
    }
    const at::Tensor on_gpu = qkv.to(kGpu, at::kBFloat16), newest_on_gpu = at::cat(queries).to(kGpu, at::kBFloat16);
    const PackedSequences keys(one.lengths, kGpu), sequences(newest, kGpu);
    AttentionInputs inputs = MakeInputs(one, on_gpu, keys);
    inputs.key_starts = inputs.starts;
    inputs.key_rows = keys.rows();
    inputs.longest_key = keys.longest();
    inputs.starts = sequences.starts().const_data_ptr<int32_t>();
    inputs.rows = sequences.rows();
    inputs.longest = sequences.longest();
    inputs.queries = newest_on_gpu.const_data_ptr();
    inputs.query_stride = heads * head_dim;
    at::Tensor actual = at::empty_like(newest_on_gpu);
    const absl::Status status = Forward(inputs, {.attended = actual.mutable_data_ptr()});
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_LT(RelativeDifference(actual, at::cat(expected)), 1e-2) << "heads of " << head_dim;
  }
}

TEST(CudnnAttentionTest, WhatIsPreparedNeedsNoPlanLater) {
  SYNCOPATE_NEED_GPUS(1);
  Case one{.heads = 10, .kv_heads = 2, .head_dim = 64};
  const at::Tensor qkv = at::randn({900, 14 * 64}, at::TensorOptions(kGpu).dtype(at::kBFloat16));
  at::Tensor y = at::empty({900, 10 * 64}, qkv.options());
  AttentionInputs most = MakeInputs(one, qkv, PackedSequences(one.lengths, kGpu));
  most.sequences = 20;
  most.longest_key = 2000;
  CudnnAttention::On(0).Prepare(most);
  const int prepared = CudnnAttention::On(0).effort().plans;
  for (int64_t sequences : {1, 8, 9, 20}) {
    one.lengths.assign(static_cast<size_t>(sequences), 45);
    const PackedSequences packed(one.lengths, kGpu);
    AttentionInputs inputs = MakeInputs(one, qkv, packed);
    EXPECT_TRUE(Forward(inputs, {.attended = y.mutable_data_ptr()}).ok());
    inputs.key_starts = inputs.starts;
    inputs.key_rows = inputs.rows;
    inputs.longest_key = inputs.longest;
    EXPECT_TRUE(Forward(inputs, {.attended = y.mutable_data_ptr()}).ok());
  }
  EXPECT_EQ(CudnnAttention::On(0).effort().plans, prepared);
}

// Gradients of queries to which several blocks contribute, for sequences that one call of cuDNN covers and for those
// that need several.
TEST(CudnnAttentionTest, WhereDeterminismIsAskedForItRepeatsItsBits) {
  SYNCOPATE_NEED_GPUS(1);
  std::vector<Case> cases(std::begin(kCases), std::end(kCases));
  cases.push_back({.heads = 28, .kv_heads = 4, .head_dim = 128, .lengths = {4096, 17, 4000, 4096, 3000, 1, 600}});
  for (const Case& one : cases) {
    const Drawn drawn = Draw(one);
    const Results expected = Attend(OpsFor(kGpu), one, drawn, kGpu, at::kBFloat16);
    const Results first = Attend(OpsFor(kGpu, /*deterministic=*/true), one, drawn, kGpu, at::kBFloat16);
    EXPECT_TRUE(first.by_cudnn) << one.rows() << " rows";
    EXPECT_LT(RelativeDifference(first.y, expected.y), 1e-2) << one.rows() << " rows";
    EXPECT_LT(RelativeDifference(first.dqkv, expected.dqkv), 2e-2) << one.rows() << " rows";
    for (int i = 0; i < 5; ++i) {
      const Results again = Attend(OpsFor(kGpu, /*deterministic=*/true), one, drawn, kGpu, at::kBFloat16);
      EXPECT_TRUE(again.y.equal(first.y)) << one.rows() << " rows";
      EXPECT_TRUE(again.dqkv.equal(first.dqkv)) << one.rows() << " rows";
    }
  }
}

TEST(CudnnAttentionTest, ASequenceTooLongForItsDeterministicPassGoesByFlashAttentionAndRepeatsItsBits) {
  SYNCOPATE_NEED_GPUS(1);
  const Case one{.heads = 28, .kv_heads = 4, .head_dim = 128, .lengths = {40, 9500}};
  const Drawn drawn = Draw(one);
  const Results first = Attend(OpsFor(kGpu, /*deterministic=*/true), one, drawn, kGpu, at::kBFloat16);
  const Results again = Attend(OpsFor(kGpu, /*deterministic=*/true), one, drawn, kGpu, at::kBFloat16);
  EXPECT_FALSE(first.by_cudnn);
  EXPECT_TRUE(again.dqkv.equal(first.dqkv));
  EXPECT_FALSE(at::globalContext().deterministicAlgorithms()) << "libtorch's switch has its former value";
  EXPECT_LT(RelativeDifference(first.dqkv, Attend(OpsFor(kGpu), one, drawn, kGpu, at::kBFloat16).dqkv), 2e-2);
}

TEST(CudnnAttentionTest, KeepsABoundedNumberOfPlans) {
  SYNCOPATE_NEED_GPUS(1);
  const int before = CudnnAttention::On(0).effort().plans;
  Case one{.heads = 1, .kv_heads = 1, .head_dim = 64};
  for (int64_t sequences = 1; CudnnAttention::On(0).effort().plans <= before + CudnnAttention::kMostPlans;
       ++sequences) {
    one.lengths.assign(static_cast<size_t>(sequences), 3);
    const Results results = Attend(OpsFor(kGpu), one, Draw(one), kGpu, at::kBFloat16);
    ASSERT_TRUE(results.by_cudnn);
    // There are few plans for many numbers of sequences, so the loop continues with another number of heads.
    if (sequences == 40) ++one.heads, one.kv_heads = one.heads, sequences = 0;
  }
  one.lengths = {3};  // the plan of this shape was dropped
  const Drawn drawn = Draw(one);
  EXPECT_LT(RelativeDifference(Attend(OpsFor(kGpu), one, drawn, kGpu, at::kBFloat16).dqkv,
                               Attend(AtenOps(), one, drawn, at::kCPU, at::kFloat).dqkv),
            2e-2);
}

TEST(CudnnAttentionTest, RefusesWhatItIsNotMadeForBeforeItAsksForMemory) {
  const CudnnAttention::Lend lend = [](int64_t) -> void* {
    ADD_FAILURE() << "asked for memory";
    return nullptr;
  };
  AttentionInputs inputs{.heads = 4, .kv_heads = 4, .head_dim = 32, .sequences = 1, .rows = 8, .longest = 8};
  inputs.query_stride = inputs.key_stride = 3 * 4 * 32;
  const absl::Status head_size = CudnnAttention::On(0).Forward(inputs, {}, lend, nullptr);
  EXPECT_TRUE(CudnnAttention::IsRefusal(head_size));
  EXPECT_EQ(ErrorReason(head_size), "CUDNN_REFUSES");
  EXPECT_NE(head_size.message().find("not 32"), std::string::npos) << head_size.message();

  inputs.head_dim = 64;
  inputs.query_stride = inputs.key_stride = 4096;
  inputs.rows = int64_t{1} << 20;
  EXPECT_TRUE(CudnnAttention::IsRefusal(CudnnAttention::On(0).Forward(inputs, {}, lend, nullptr)));
}

TEST(CudnnAttentionTest, WhereCudnnDoesNotStartTheRefusalNamesIt) {
  if (WhyTooFewGpus(1).empty()) GTEST_SKIP() << "there is a GPU, so it starts";
  AttentionInputs inputs{.heads = 4, .kv_heads = 4, .head_dim = 64, .sequences = 1, .rows = 8, .longest = 8};
  inputs.query_stride = inputs.key_stride = 3 * 4 * 64;
  const absl::Status status = CudnnAttention::On(0).Forward(
      inputs, {}, [](int64_t) -> void* { return nullptr; }, nullptr);
  EXPECT_TRUE(CudnnAttention::IsRefusal(status));
  EXPECT_NE(status.message().find("libcudnn.so.9"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace syncopate::model
