#include <gtest/gtest.h>

#include <cmath>

#include "rollouter/cuda/cuda_kv_store.h"
#include "rollouter/engine/host_kv_store.h"
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

// Four sequences of 300 tokens, whose blocks are scattered over the store.
class Tables {
 public:
  static constexpr int64_t kBlocks = 76;
  Tables() {
    for (BlockIndex i = 0; i < kBlocks; ++i) tables_[i % 4].push_back(i * 7 % kBlocks);
  }
  struct Place {
    int32_t sequence = 0;
    int32_t position = 0;
  };
  KvBatch Batch(const std::vector<Place>& places) const {
    KvBatch batch;
    for (const auto& table : tables_) batch.tables.push_back(table);
    for (const Place& place : places) batch.rows.push_back({place.sequence, place.position});
    return batch;
  }

 private:
  std::vector<BlockIndex> tables_[4];
};

// Sequence 0 is prefilled in two chunks, sequence 2 whole; then each decodes one token beside a padding row.
std::vector<std::vector<Tables::Place>> Batches() {
  std::vector<std::vector<Tables::Place>> batches(3);
  for (int32_t i = 0; i < 70; ++i) batches[0].push_back({0, i});
  for (int32_t i = 70; i < 131; ++i) batches[1].push_back({0, i});
  for (int32_t i = 0; i < 5; ++i) batches[1].push_back({2, i});
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
    const Tables tables;
    HostKvStore host(config, Tables::kBlocks);
    CudaKvStore gpu(config, Tables::kBlocks, 0, on_gpu);
    uint64_t seed = 1;
    for (const std::vector<Tables::Place>& rows : Batches()) {
      auto expected = host.MakeAttention(tables.Batch(rows));
      auto found = gpu.MakeAttention(tables.Batch(rows));
      const int64_t count = static_cast<int64_t>(rows.size());
      EXPECT_LE(LargestDifference(Attend(*found, config, count, seed, on_gpu),
                                  Attend(*expected, config, count, seed, on_host)),
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
  const Tables tables;
  CudaKvStore whole(config, Tables::kBlocks, 0, options), one_by_one(config, Tables::kBlocks, 0, options);
  std::vector<Tables::Place> rows;
  for (int32_t i = 0; i < 131; ++i) rows.push_back({1, i});
  const at::Tensor together = whole.MakeAttention(tables.Batch(rows))->Attend(0, q, k, v);
  for (int64_t i = 0; i < 131; ++i) {
    const at::Tensor alone = one_by_one.MakeAttention(tables.Batch({rows[static_cast<size_t>(i)]}))
                                 ->Attend(0, q.narrow(0, i, 1), k.narrow(0, i, 1), v.narrow(0, i, 1));
    ASSERT_TRUE(alone.equal(together.narrow(0, i, 1))) << "row " << i;
  }
}

TEST(CudaAttentionTest, NumbersThatAreNotFiniteStaySo) {
  SYNCOPATE_NEED_GPUS(1);
  const model::ModelConfig config = Heads(1, 1, 32);
  const at::TensorOptions options = at::TensorOptions(at::kFloat).device(kGpu);
  const Tables tables;
  CudaKvStore store(config, Tables::kBlocks, 0, options);
  at::Tensor k = at::ones({1, 1, 32}, options);
  k.fill_(std::nanf(""));
  const at::Tensor ones = at::ones({1, 1, 32}, options);
  EXPECT_TRUE(store.MakeAttention(tables.Batch({{0, 0}}))->Attend(0, ones, k, ones).isnan().all().item<bool>());
}

TEST(CudaKvStoreTest, BlocksAreCopiedAndSwappedInAllLayers) {
  SYNCOPATE_NEED_GPUS(1);
  const model::ModelConfig config = Heads(2, 2, 16);
  CudaKvStore store(config, 5, /*host_blocks=*/2, at::TensorOptions(at::kFloat).device(kGpu));
  store.data().copy_(RandomTensor(store.data().sizes(), 9));
  const at::Tensor before = store.data().clone();
  store.SwapOut(std::vector<BlockSwap>{{0, 1}, {3, 0}});
  store.Copy(std::vector<BlockCopy>{{1, 0, 7}, {1, 3, 16}});
  EXPECT_TRUE(store.data().select(0, 0).narrow(2, 0, 7).equal(before.select(0, 1).narrow(2, 0, 7)));
  EXPECT_TRUE(store.data().select(0, 3).equal(before.select(0, 1)));
  store.SwapIn(std::vector<BlockSwap>{{2, 1}, {3, 0}});
  EXPECT_TRUE(store.data().select(0, 2).equal(before.select(0, 0)));
  EXPECT_TRUE(store.data().select(0, 3).equal(before.select(0, 3)));
  EXPECT_TRUE(store.data().select(0, 4).equal(before.select(0, 4)));
}

}  // namespace
}  // namespace syncopate::rollouter
