#include "model/ops.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/transformer.h"
#include "tests/support/op_cases.h"

// Compares the backward half of each operation with autograd over its forward half, written with differentiable
// operators: for the operators of libtorch, and for the loops that the CPU uses, on every kind of processor.
namespace syncopate::model {
namespace {

using syncopate::testing::RelativeDifference;

constexpr double kClose = 2e-6;

at::Tensor Leaf(at::IntArrayRef shape) { return at::randn(shape, at::kFloat).set_requires_grad(true); }

struct Kind {
  const char* name;
  std::unique_ptr<const Ops> (*make)();
};

// A kind that needs AVX2 is tested only on processors with AVX2.
std::vector<Kind> Kinds() {
  std::vector<Kind> kinds = {{"Aten", [] { return std::unique_ptr<const Ops>(); }},
                             {"PlainLoops", [] { return MakeHostOps(PlainHostRows()); }}};
  if (&FastestHostRows() == &Avx2HostRows()) {
    kinds.push_back({"Avx2Loops", [] { return MakeHostOps(Avx2HostRows()); }});
  }
  return kinds;
}

class OpsTest : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    at::manual_seed(5);
  }
  const std::unique_ptr<const Ops> made_ = GetParam().make();
  const Ops& ops_ = made_ != nullptr ? *made_ : AtenOps();
};
INSTANTIATE_TEST_SUITE_P(Kinds, OpsTest, ::testing::ValuesIn(Kinds()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(OpsTest, NormAndResidualBackwardEqualAutograd) {
  at::Tensor x = Leaf({7, 24}), residual = Leaf({7, 24}), weight = Leaf({24});
  at::Tensor dy = at::randn({7, 24}), passed = at::randn({7, 24});
  at::Tensor sum = x + residual;
  at::Tensor y = sum * at::rsqrt((sum * sum).mean({-1}, true) + 1e-6) * weight;
  ((y * dy).sum() + (sum * passed).sum()).backward();

  Ops::Normed normed = ops_.AddNorm(x.detach(), residual.detach(), weight.detach(), 1e-6);
  at::Tensor dweight = at::ones({24});
  Ops::NormGradient back =
      ops_.AddNormBackward(dy, normed.sum, normed.rstd, weight.detach(), passed, dweight, /*wanted=*/true);
  EXPECT_LT(RelativeDifference(normed.y, y), kClose);
  EXPECT_LT(RelativeDifference(back.y, y), kClose);
  EXPECT_LT(RelativeDifference(back.dsum, x.grad()), kClose);
  EXPECT_LT(RelativeDifference(dweight - 1, weight.grad()), kClose);
}

TEST_P(OpsTest, RotationTurnsBackAndLeavesTheValuesAlone) {
  at::Tensor x = at::randn({6, 5 * 8}), turned = x.clone(), angle = at::randn({16, 4});
  at::Tensor positions = at::randint(16, {6}, at::kLong);
  ops_.Rotate(turned, 4, angle.cos(), angle.sin(), positions, false);
  at::Tensor first = x.narrow(1, 0, 4), second = x.narrow(1, 4, 4);
  at::Tensor c = angle.cos().index_select(0, positions), s = angle.sin().index_select(0, positions);
  EXPECT_LT(RelativeDifference(turned.narrow(1, 0, 4), first * c - second * s), kClose);
  EXPECT_LT(RelativeDifference(turned.narrow(1, 4, 4), second * c + first * s), kClose);
  EXPECT_TRUE(at::equal(turned.narrow(1, 32, 8), x.narrow(1, 32, 8)));
  ops_.Rotate(turned, 4, angle.cos(), angle.sin(), positions, true);
  EXPECT_LT(RelativeDifference(turned, x), kClose);
}

TEST_P(OpsTest, SwiGluBackwardEqualsAutograd) {
  at::Tensor gate_up = Leaf({9, 20}), dy = at::randn({9, 10});
  at::Tensor y = at::silu(gate_up.narrow(1, 0, 10)) * gate_up.narrow(1, 10, 10);
  (y * dy).sum().backward();
  Ops::SwiGluGradient back = ops_.SwiGluBackward(dy, gate_up.detach(), /*wanted=*/true);
  EXPECT_LT(RelativeDifference(ops_.SwiGlu(gate_up.detach()), y), kClose);
  EXPECT_LT(RelativeDifference(back.y, y), kClose);
  EXPECT_LT(RelativeDifference(back.dgate_up, gate_up.grad()), kClose);
}

TEST_P(OpsTest, SwiGluWithAdaptersIsThatOfTheSumsAndSoIsItsBackward) {
  const at::Tensor gate_up = at::randn({9, 20}), dy = at::randn({9, 10});
  const Ops::LowRank of_dy{at::randn({9, 3}), at::randn({3, 10}).t(), 0.5};
  const Ops::LowRank gate{at::randn({9, 6}).narrow(1, 3, 3), at::randn({10, 3}), 2};
  const Ops::LowRank up{at::randn({9, 2}), at::randn({10, 2})};
  auto made_by = [](const Ops::LowRank& term) { return at::mm(term.inner, term.outer.t()) * term.scale; };
  const at::Tensor none = at::zeros({9, 10});
  auto expect_added = [](const at::Tensor& found, const at::Tensor& expected) {
    EXPECT_LT(RelativeDifference(found - 1, expected), kClose);
  };
  for (const bool has_up : {true, false}) {
    const Ops::LowRank second = has_up ? up : Ops::LowRank{};
    const at::Tensor sum = gate_up + at::cat({made_by(gate), has_up ? made_by(up) : none}, 1);
    const Ops::SwiGluGradient expected = ops_.SwiGluBackward(dy + made_by(of_dy), sum, /*wanted=*/true);
    EXPECT_LT(RelativeDifference(ops_.AdaptedSwiGlu(gate_up, gate, second), ops_.SwiGlu(sum)), kClose);
    const Ops::SwiGluAdapters adapters{
        gate, second, of_dy, at::ones({10, 3}), has_up ? at::ones({10, 2}) : at::Tensor(), at::ones({3, 10})};
    const Ops::SwiGluGradient back = ops_.AdaptedSwiGluBackward(dy.clone(), gate_up.clone(), adapters, /*wanted=*/true);
    EXPECT_LT(RelativeDifference(back.dgate_up, expected.dgate_up), kClose);
    EXPECT_LT(RelativeDifference(back.y, expected.y), kClose);
    const at::Tensor dgate = expected.dgate_up.narrow(1, 0, 10), dup = expected.dgate_up.narrow(1, 10, 10);
    expect_added(adapters.gate_outer, at::mm(dgate.t(), gate.inner) * 2);
    if (has_up) expect_added(adapters.up_outer, at::mm(dup.t(), up.inner));
    expect_added(adapters.dy_a, at::mm(of_dy.inner.t(), expected.y));
  }
  EXPECT_TRUE(at::equal(ops_.AdaptedSwiGlu(gate_up, {}, {}), ops_.SwiGlu(gate_up)));
}

// Attends in each sequence separately, by the definition.
at::Tensor AttendOneByOne(const at::Tensor& qkv, int64_t heads, int64_t kv_heads, const std::vector<int64_t>& lengths,
                          int64_t window) {
  const int64_t d = qkv.size(1) / (heads + 2 * kv_heads);
  std::vector<at::Tensor> outputs;
  int64_t begin = 0;
  for (int64_t length : lengths) {
    at::Tensor rows = qkv.narrow(0, begin, length).view({length, heads + 2 * kv_heads, d}).transpose(0, 1);
    at::Tensor q = rows.narrow(0, 0, heads);
    at::Tensor k = rows.narrow(0, heads, kv_heads).repeat_interleave(heads / kv_heads, 0);
    at::Tensor v = rows.narrow(0, heads + kv_heads, kv_heads).repeat_interleave(heads / kv_heads, 0);
    at::Tensor hidden = at::ones({length, length}, at::kBool).triu(1);
    for (int64_t row = 0; window > 0 && row < length; ++row) {
      for (int64_t t = 0; t + window <= row; ++t) hidden[row][t] = true;
    }
    at::Tensor scores = at::matmul(q, k.transpose(1, 2)) / std::sqrt(static_cast<double>(d));
    at::Tensor p = at::softmax(scores.masked_fill(hidden, -INFINITY), -1);
    outputs.push_back(at::matmul(p, v).transpose(0, 1).reshape({length, heads * d}));
    begin += length;
  }
  return at::cat(outputs);
}

TEST_P(OpsTest, AttentionStaysInsideItsSequenceAndItsBackwardEqualsAutograd) {
  const std::vector<int64_t> lengths = {3, 1, 8, 5};
  for (int64_t kv_heads : {1, 2, 4}) {
    for (int64_t window : {0, 1, 3, 8}) {
      SCOPED_TRACE(absl::StrCat(kv_heads, " key/value heads, window ", window));
      const Ops::AttentionShape shape{4, kv_heads, window};
      at::Tensor qkv = Leaf({17, (4 + 2 * kv_heads) * 8}), dy = at::randn({17, 32});
      at::Tensor y = AttendOneByOne(qkv, 4, kv_heads, lengths, window);
      (y * dy).sum().backward();
      const PackedSequences sequences(lengths);
      Ops::Attended attended = ops_.Attend(qkv.detach(), shape, sequences);
      EXPECT_LT(RelativeDifference(attended.y, y), kClose);
      EXPECT_LT(RelativeDifference(ops_.AttendBackward(dy, qkv.detach(), attended, shape, sequences), qkv.grad()),
                kClose);
    }
  }
}

TEST_P(OpsTest, HeadBackwardEqualsAutograd) {
  at::Tensor logits = Leaf({6, 13}), targets = at::randint(13, {6}, at::kLong);
  at::Tensor dlogprob = at::randn({6}), dentropy = at::randn({6});
  at::Tensor logprobs = at::log_softmax(logits / 0.7, -1);
  at::Tensor logprob = logprobs.gather(1, targets.unsqueeze(1)).squeeze(1);
  at::Tensor entropy = -(logprobs.exp() * logprobs).sum(-1);
  ((logprob * dlogprob).sum() + (entropy * dentropy).sum()).backward();
  Ops::HeadRows rows = ops_.Head(logits.detach(), targets, 0.7);
  EXPECT_LT(RelativeDifference(rows.logprob, logprob), kClose);
  EXPECT_LT(RelativeDifference(rows.entropy, entropy), kClose);
  EXPECT_LT(RelativeDifference(rows.top_probability, at::amax(logprobs, {-1}).exp()), kClose);
  at::Tensor gradient = ops_.HeadBackward(logits.detach().clone(), targets, rows, dlogprob, dentropy, 0.7, at::kFloat);
  EXPECT_LT(RelativeDifference(gradient, logits.grad()), kClose);
}

TEST_P(OpsTest, AdamWReturnsTheSquaresOfTheChangesOfTheParameters) {
  constexpr int64_t kElements = 4 * 700;
  for (double decay : {0.0, 0.3}) {
    const at::Tensor before = at::randn({kElements}), first = 0.1 * at::randn({kElements});
    const at::Tensor second = at::rand({kElements}), gradients = at::randn({kElements});
    const Ops::AdamW update = {.learning_rate = 0.01,
                               .beta1 = 0.9,
                               .beta2 = 0.99,
                               .eps = 1e-8,
                               .weight_decay = decay,
                               .correction1 = 0.5,
                               .correction2 = 0.25};
    auto squares = [&](double factor, const at::Tensor& parameters) {
      return ops_
          .UpdateByAdamW(update, at::scalar_tensor(factor, at::kFloat),
                         {parameters, first.clone(), second.clone(), gradients.clone(), {}})
          .item<double>();
    };
    const at::Tensor after = before.clone();
    const double moved = squares(0.7, after);
    EXPECT_NEAR(moved, (after - before).to(at::kDouble).square().sum().item<double>(), 1e-4 * moved);
    EXPECT_GT(moved, 0);
    EXPECT_EQ(squares(std::nan(""), after.clone()), 0);
  }
}

// The engine's padding and strictly on-policy runs rely on this property. The BLAS decides by the processor for which
// rows it uses the same algorithm.
TEST_P(OpsTest, RowsOfAProductHaveTheSameBitsInAnyBatchOfAtLeastMinRows) {
  for (const auto& [inner, columns] :
       {std::pair<int64_t, int64_t>{64, 192}, {192, 64}, {64, 11}, {256, 256}, {512, 96}}) {
    const at::Tensor x = at::randn({140, inner}), weight = at::randn({columns, inner});
    const at::Tensor all = at::linear(x, weight);
    for (int64_t rows = Transformer::kMinRows; rows < x.size(0); ++rows) {
      ASSERT_TRUE(at::equal(at::linear(x.narrow(0, 0, rows), weight), all.narrow(0, 0, rows)))
          << rows << " rows of " << inner << " x " << columns;
    }
  }
}

TEST_P(OpsTest, GradientsOfWeightsAreAddedToWhatIsThere) {
  at::Tensor dy = at::randn({9, 4}), x = at::randn({9, 6}), ids = at::tensor({0, 2, 2, 1, 0, 2, 2, 2, 1}, at::kLong);
  at::Tensor dweight = at::ones({4, 6}), dbias = at::ones({4}), dtable = at::ones({3, 4});
  ops_.AddWeightGradient(dweight, dy, x);
  ops_.AddBiasGradient(dbias, dy);
  ops_.AddEmbeddingGradient(dtable, ids, dy);
  EXPECT_LT(RelativeDifference(dweight, at::mm(dy.t(), x) + 1), kClose);
  EXPECT_LT(RelativeDifference(dbias, dy.sum(0) + 1), kClose);
  at::Tensor expected = at::ones({3, 4});
  for (int64_t r = 0; r < 9; ++r) expected[ids[r].item<int64_t>()] += dy[r];
  EXPECT_LT(RelativeDifference(dtable, expected), kClose);
}

// The loops differ from the operators only by rounding, also at sizes that fill no vector.
TEST_P(OpsTest, GivesWhatTheOperatorsOfLibtorchGive) {
  for (const testing::OpCase& one :
       {testing::OpCase{},
        testing::OpCase{.columns = 37,
        .heads = 6,
        .kv_heads = 3,
        .head_dim = 10,
        .width = 33,
        .vocab = 29,
        .lengths = {1, 128, 3, 40}},
        testing::OpCase{
            .columns = 8, .heads = 2, .kv_heads = 2, .head_dim = 4, .width = 7, .vocab = 2, .lengths = {520, 2}}}) {
    const auto expected = testing::RunAllOps(AtenOps(), one, at::kCPU, at::kFloat);
    const auto actual = testing::RunAllOps(ops_, one, at::kCPU, at::kFloat);
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < actual.size(); ++i) EXPECT_LT(RelativeDifference(actual[i], expected[i]), 1e-5) << i;
  }
}

TEST(HostRowsTest, ARowOverBlocksAttendsAsTheLastRowOfItsSequence) {
  constexpr int64_t kBlock = 16;
  const HostSequence sequence = {.length = 37, .heads = 6, .kv_heads = 3, .head_dim = 10};
  const at::Tensor qkv = at::randn({sequence.length, sequence.row_size()});
  const int64_t keys_at = sequence.query_size(), key_size = sequence.kv_heads * sequence.head_dim;
  // Within a layer's storage, the values of a block follow the keys of all blocks.
  const at::Tensor keys = at::zeros({3 * kBlock, key_size}), values = at::zeros({3 * kBlock, key_size});
  keys.narrow(0, 0, sequence.length).copy_(qkv.narrow(1, keys_at, key_size));
  values.narrow(0, 0, sequence.length).copy_(qkv.narrow(1, keys_at + key_size, key_size));
  const at::Tensor memory = at::cat({keys, values});
  std::vector<const float*> blocks;
  for (int64_t i = 0; i < 3; ++i) blocks.push_back(memory.const_data_ptr<float>() + i * kBlock * key_size);
  std::vector<const HostRows*> kinds = {&PlainHostRows()};
  if (&FastestHostRows() == &Avx2HostRows()) kinds.push_back(&Avx2HostRows());
  for (const HostRows* rows : kinds) {
    std::vector<float> scratch(static_cast<size_t>(sequence.length));
    const at::Tensor all = at::empty({sequence.length, sequence.query_size()});
    const at::Tensor shift = at::empty({sequence.length, sequence.heads}), last = at::empty({sequence.query_size()});
    rows->Attend(sequence, qkv.const_data_ptr<float>(), all.mutable_data_ptr<float>(), shift.mutable_data_ptr<float>(),
                 scratch.data());
    rows->AttendBlocks(sequence, qkv[sequence.length - 1].const_data_ptr<float>(), blocks.data(), kBlock,
                       3 * kBlock * key_size, last.mutable_data_ptr<float>(), scratch.data());
    EXPECT_LT(RelativeDifference(last, all[sequence.length - 1]), kClose);
  }
}

TEST_P(OpsTest, WhatIsOutsideATableIsAnError) {
  at::Tensor logits = at::randn({3, 5}), x = at::randn({3, 8}), angle = at::randn({4, 4});
  EXPECT_THROW(ops_.Head(logits, at::tensor({0, 5, 1}, at::kLong), 1), c10::Error);
  const Ops::HeadRows rows = ops_.Head(logits, at::zeros({3}, at::kLong), 1);
  EXPECT_THROW(
      ops_.HeadBackward(logits.clone(), at::tensor({0, -1, 1}, at::kLong), rows, at::ones({3}), {}, 1, at::kFloat),
      c10::Error);
  EXPECT_THROW(ops_.Rotate(x, 1, angle.cos(), angle.sin(), at::tensor({0, 4, 1}, at::kLong), false), c10::Error);
}

// The trainer detects a loss that is not finite by the norm of its gradient, so no operation may hide it.
TEST_P(OpsTest, WhatIsNotANumberStaysSo) {
  const double nan = std::nan("");
  const PackedSequences sequences({2, 3});
  at::Tensor qkv = at::randn({5, 3 * 4}), gate_up = at::randn({5, 6}), logits = at::randn({5, 7});
  for (at::Tensor tensor : {qkv, gate_up, logits}) tensor[3][1].fill_(nan);
  const auto has_nan = [](const at::Tensor& tensor) { return tensor.isnan().any().item<bool>(); };
  const Ops::Attended attended = ops_.Attend(qkv, {1, 1}, sequences);
  EXPECT_TRUE(has_nan(attended.y));
  EXPECT_TRUE(has_nan(ops_.AttendBackward(at::randn({5, 4}), qkv, attended, {1, 1}, sequences)));
  EXPECT_TRUE(has_nan(ops_.SwiGlu(gate_up)));
  EXPECT_TRUE(has_nan(ops_.SwiGluBackward(at::randn({5, 3}), gate_up, false).dgate_up));
  EXPECT_TRUE(has_nan(ops_.AddNorm(gate_up, {}, at::ones({6}), 1e-6).y));
  const Ops::HeadRows rows = ops_.Head(logits, at::zeros({5}, at::kLong), 1);
  EXPECT_TRUE(has_nan(rows.logprob) && has_nan(rows.entropy) && has_nan(rows.log_sum_exp));
  EXPECT_TRUE(has_nan(ops_.HeadBackward(logits, at::zeros({5}, at::kLong), rows, at::ones({5}), {}, 1, at::kFloat)));
}

}  // namespace
}  // namespace syncopate::model
