#include <gtest/gtest.h>

#include <cmath>

#include "rollouter/cuda/cuda_attention.h"
#include "rollouter/engine/host_attention.h"
#include "tests/gpu/engine/gpu_engine.h"
#include "tests/support/small_model.h"

namespace syncopate::rollouter {
namespace {

using testing::LargestDifference;
using testing::RandomTensor;

const at::Device kGpu(at::kCUDA, 0);

model::ModelConfig Heads(int64_t heads, int64_t kv_heads, int64_t head_dim) {
  model::ModelConfig config;
  config.vocab_size = 16;
  config.num_hidden_layers = 2;
  config.num_attention_heads = heads;
  config.num_key_value_heads = kv_heads;
  config.head_dim = head_dim;
  config.max_position_embeddings = 300;
  return config;
}

// Slot 0 is prefilled in two chunks, slot 2 whole; then each decodes a token beside a padding row.
std::vector<std::vector<RowPlace>> Batches() {
  std::vector<std::vector<RowPlace>> batches(3);
  for (int64_t i = 0; i < 70; ++i) batches[0].push_back({0, i});
  for (int64_t i = 70; i < 131; ++i) batches[1].push_back({0, i});
  for (int64_t i = 0; i < 5; ++i) batches[1].push_back({2, i});
  batches[2] = {{0, 131}, {3, 0}, {2, 5}};
  return batches;
}

at::Tensor Attend(model::Attention& attention, const model::ModelConfig& config, int64_t rows, uint64_t seed,
                  at::TensorOptions options) {
  const at::Tensor q = RandomTensor({rows, config.num_attention_heads, config.head_dim}, seed);
  const at::Tensor k = RandomTensor({rows, config.num_key_value_heads, config.head_dim}, seed + 1);
  const at::Tensor v = RandomTensor({rows, config.num_key_value_heads, config.head_dim}, seed + 2);
  return attention.Attend(/*layer=*/1, q.to(options), k.to(options), v.to(options));
}

class CudaAttentionOverHeads : public ::testing::TestWithParam<model::ModelConfig> {};
INSTANTIATE_TEST_SUITE_P(Heads, CudaAttentionOverHeads,
                         ::testing::Values(Heads(4, 4, 16), Heads(6, 2, 8), Heads(14, 2, 64), Heads(8, 1, 128),
                                           Heads(2, 2, 256), Heads(3, 3, 34)));

TEST_P(CudaAttentionOverHeads, GivesWhatTheCpuGives) {
  SYNCOPATE_NEED_GPUS(1);
  const model::ModelConfig config = GetParam();
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const double tolerance = dtype == at::kFloat ? 2e-5 : 3e-2;
    const at::TensorOptions on_host = at::TensorOptions(dtype), on_gpu = on_host.device(kGpu);
    KvCache host(config, /*slots=*/3, at::kFloat), gpu(config, /*slots=*/3, on_gpu);
    uint64_t seed = 1;
    for (const std::vector<RowPlace>& rows : Batches()) {
      HostAttention expected(config, host, rows);
      CudaAttention found(config, gpu, rows);
      const int64_t count = static_cast<int64_t>(rows.size());
      EXPECT_LE(
          LargestDifference(Attend(found, config, count, seed, on_gpu), Attend(expected, config, count, seed, on_host)),
          tolerance)
          << at::toString(dtype) << ", batch of " << count;
      seed += 3;
    }
  }
}

TEST(CudaAttentionTest, TheBitsOfARowDependOnNoOtherRow) {
  SYNCOPATE_NEED_GPUS(1);
  const model::ModelConfig config = Heads(4, 2, 64);
  const at::TensorOptions options = at::TensorOptions(at::kFloat).device(kGpu);
  const at::Tensor q = RandomTensor({131, 4, 64}, 1).to(kGpu), k = RandomTensor({131, 2, 64}, 2).to(kGpu),
                   v = RandomTensor({131, 2, 64}, 3).to(kGpu);
  KvCache whole(config, 2, options), one_by_one(config, 2, options);
  std::vector<RowPlace> rows;
  for (int64_t i = 0; i < 131; ++i) rows.push_back({1, i});
  const at::Tensor together = CudaAttention(config, whole, rows).Attend(0, q, k, v);
  for (int64_t i = 0; i < 131; ++i) {
    const at::Tensor alone =
        CudaAttention(config, one_by_one, {rows[i]}).Attend(0, q.narrow(0, i, 1), k.narrow(0, i, 1), v.narrow(0, i, 1));
    ASSERT_TRUE(alone.equal(together.narrow(0, i, 1))) << "row " << i;
  }
}

TEST(CudaAttentionTest, NumbersThatAreNotFiniteStaySo) {
  SYNCOPATE_NEED_GPUS(1);
  const model::ModelConfig config = Heads(1, 1, 32);
  const at::TensorOptions options = at::TensorOptions(at::kFloat).device(kGpu);
  KvCache cache(config, 1, options);
  at::Tensor k = at::ones({1, 1, 32}, options);
  k.fill_(std::nanf(""));
  const at::Tensor ones = at::ones({1, 1, 32}, options);
  EXPECT_TRUE(CudaAttention(config, cache, {{0, 0}}).Attend(0, ones, k, ones).isnan().all().item<bool>());
}

TEST(KvCacheTest, ForkOnAGpuCopiesThePrefixOfEveryLayer) {
  SYNCOPATE_NEED_GPUS(1);
  const model::ModelConfig config = Heads(2, 2, 16);
  KvCache cache(config, 4, at::TensorOptions(at::kFloat).device(kGpu));
  cache.data().copy_(RandomTensor(cache.data().sizes(), 9));
  const at::Tensor before = cache.data().clone();
  cache.Fork(0, std::vector<int64_t>{1, 3}, 7);
  for (int64_t slot : {1, 3}) {
    EXPECT_TRUE(cache.data().select(2, slot).narrow(2, 0, 7).equal(before.select(2, 0).narrow(2, 0, 7)));
    EXPECT_TRUE(cache.data().select(2, slot).narrow(2, 7, 9).equal(before.select(2, slot).narrow(2, 7, 9)));
  }
  EXPECT_TRUE(cache.data().select(2, 2).equal(before.select(2, 2)));
}

}  // namespace
}  // namespace syncopate::rollouter
