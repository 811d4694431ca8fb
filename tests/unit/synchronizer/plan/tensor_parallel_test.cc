#include "synchronizer/plan/tensor_parallel.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/presets.h"
#include "tests/unit/synchronizer/plan/plan_fixtures.h"

namespace syncopate::synchronizer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr DType kBf16 = DType::kBFloat16;

// One layer: 4 query heads and 2 key/value heads of 8 elements, hidden 6, intermediate 12, vocabulary 10.
std::vector<TensorSpec> OneLayer() {
  const std::string attention = "model.layers.0.self_attn.";
  return AsQwen({{"model.embed_tokens.weight", kBf16, {10, 6}},
                 {attention + "q_proj.weight", kBf16, {32, 6}},
                 {attention + "q_proj.bias", kBf16, {32}},
                 {attention + "k_proj.weight", kBf16, {16, 6}},
                 {attention + "k_proj.bias", kBf16, {16}},
                 {attention + "v_proj.weight", kBf16, {16, 6}},
                 {attention + "v_proj.bias", kBf16, {16}},
                 {attention + "o_proj.weight", kBf16, {6, 32}},
                 {attention + "q_norm.weight", kBf16, {8}},
                 {attention + "k_norm.weight", kBf16, {8}},
                 {"model.layers.0.mlp.gate_proj.weight", kBf16, {12, 6}},
                 {"model.layers.0.mlp.up_proj.weight", kBf16, {12, 6}},
                 {"model.layers.0.mlp.down_proj.weight", kBf16, {6, 12}},
                 {"model.norm.weight", kBf16, {6}}},
                /*head=*/8);
}

std::map<std::string, std::vector<int64_t>> MakeShapes(const TensorParallelLayout& made) {
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const LocalTensor& tensor : made.tensors) shapes[tensor.spec.name] = tensor.spec.shape;
  return shapes;
}

// The pieces of one rank that lie in one local tensor, with offsets counted from its beginning.
std::vector<Piece> PiecesIn(const TensorParallelLayout& made, const std::string& name, int32_t rank) {
  for (const LocalTensor& tensor : made.tensors) {
    if (tensor.spec.name != name) continue;
    std::vector<Piece> pieces;
    for (Piece piece : made.layout.pieces()) {
      piece.offset -= tensor.offset;
      bool inside = piece.rank == rank && piece.offset >= 0 && piece.offset < tensor.spec.NumBytes();
      if (inside) pieces.push_back(piece);
    }
    return pieces;
  }
  ADD_FAILURE() << "no local tensor " << name;
  return {};
}

std::string Refusal(std::vector<TensorSpec> tensors, const TensorParallelOptions& options) {
  absl::Status status = MakeTensorParallel(ManifestFor(std::move(tensors)), options).status();
  EXPECT_THAT(status, HasReason("BAD_LAYOUT"));
  return std::string(status.message());
}

TEST(TensorParallelTest, CutsEachTensorAsItsSpecSays) {
  auto made = MakeTensorParallel(ManifestFor(OneLayer()), {.ranks = 2});
  ASSERT_TRUE(made.ok()) << made.status();
  auto shapes = MakeShapes(*made);
  const std::string layer = "model.layers.0.";
  EXPECT_EQ(shapes["model.embed_tokens.weight"], (std::vector<int64_t>{5, 6}));
  EXPECT_EQ(shapes[layer + "self_attn.q_proj.weight"], (std::vector<int64_t>{16, 6}));
  EXPECT_EQ(shapes[layer + "self_attn.k_proj.bias"], (std::vector<int64_t>{8}));
  EXPECT_EQ(shapes[layer + "self_attn.o_proj.weight"], (std::vector<int64_t>{6, 16}));
  EXPECT_EQ(shapes[layer + "self_attn.q_norm.weight"], (std::vector<int64_t>{8}));
  EXPECT_EQ(shapes[layer + "mlp.up_proj.weight"], (std::vector<int64_t>{6, 6}));
  EXPECT_EQ(shapes[layer + "mlp.down_proj.weight"], (std::vector<int64_t>{6, 6}));
  EXPECT_EQ(PiecesIn(*made, layer + "self_attn.q_proj.weight", 1), (std::vector<Piece>{{1, 1, 96, 192, 0}}));
  EXPECT_EQ(PiecesIn(*made, layer + "self_attn.o_proj.weight", 1), (std::vector<Piece>{{1, 7, 16, 32, 0, 6, 32}}));
  EXPECT_EQ(PiecesIn(*made, "model.norm.weight", 1), (std::vector<Piece>{{1, 13, 0, 6, 0}}));
}

TEST(TensorParallelTest, FusedTensorsHoldTheirSlicesOneAfterTheOther) {
  auto made = MakeTensorParallel(ManifestFor(OneLayer()), {.ranks = 2, .fused = true});
  ASSERT_TRUE(made.ok()) << made.status();
  auto shapes = MakeShapes(*made);
  const std::string layer = "model.layers.0.";
  EXPECT_EQ(shapes[layer + "self_attn.qkv_proj.weight"], (std::vector<int64_t>{32, 6}));
  EXPECT_EQ(shapes[layer + "self_attn.qkv_proj.bias"], (std::vector<int64_t>{32}));
  EXPECT_EQ(shapes[layer + "mlp.gate_up_proj.weight"], (std::vector<int64_t>{12, 6}));
  EXPECT_EQ(shapes.size(), 9u);
  EXPECT_EQ(PiecesIn(*made, layer + "self_attn.qkv_proj.weight", 1),
            (std::vector<Piece>{{1, 1, 96, 192, 0}, {1, 3, 48, 96, 192}, {1, 5, 48, 96, 288}}));
  EXPECT_EQ(PiecesIn(*made, layer + "self_attn.qkv_proj.bias", 0),
            (std::vector<Piece>{{0, 2, 0, 16, 0}, {0, 4, 0, 8, 32}, {0, 6, 0, 8, 48}}));
}

TEST(TensorParallelTest, RanksShareAHeadWhereThereAreFewerHeadsThanRanks) {
  auto made = MakeTensorParallel(ManifestFor(OneLayer()), {.ranks = 4});
  ASSERT_TRUE(made.ok()) << made.status();
  const std::string name = "model.layers.0.self_attn.k_proj.weight";
  EXPECT_EQ(PiecesIn(*made, name, 1), (std::vector<Piece>{{1, 3, 0, 48, 0}}));
  EXPECT_EQ(PiecesIn(*made, name, 2), (std::vector<Piece>{{2, 3, 48, 96, 0}}));
}

TEST(TensorParallelTest, AVocabularyThatDoesNotDivideIsPadded) {
  auto made = MakeTensorParallel(ManifestFor(OneLayer()), {.ranks = 4});
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(MakeShapes(*made)["model.embed_tokens.weight"], (std::vector<int64_t>{3, 6}));
  EXPECT_EQ(PiecesIn(*made, "model.embed_tokens.weight", 3), (std::vector<Piece>{{3, 0, 54, 60, 0}}));
}

TEST(TensorParallelTest, TheWholeVocabularyIsOnEachRankWhereThatIsAskedFor) {
  auto made = MakeTensorParallel(ManifestFor(OneLayer()), {.ranks = 2, .whole_vocabulary = true});
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(MakeShapes(*made)["model.embed_tokens.weight"], (std::vector<int64_t>{10, 6}));
  EXPECT_EQ(PiecesIn(*made, "model.embed_tokens.weight", 1), (std::vector<Piece>{{1, 0, 0, 60, 0}}));
  EXPECT_EQ(MakeShapes(*made)["model.layers.0.self_attn.q_proj.weight"], (std::vector<int64_t>{16, 6}));
}

TEST(TensorParallelTest, ArenasAreOfOneSizeAlsoWhereTheLastRankHasOnlyPadding) {
  auto made = MakeTensorParallel(ManifestFor(AsQwen({{"lm_head.weight", kBf16, {9, 256}}}, 1)), {.ranks = 8});
  ASSERT_TRUE(made.ok()) << made.status();
  for (int32_t rank = 0; rank < 8; ++rank) EXPECT_EQ(made->layout.arena_bytes(rank), 2 * 256 * 2);
  EXPECT_EQ(PiecesIn(*made, "lm_head.weight", 4).size(), 1u);
  EXPECT_TRUE(PiecesIn(*made, "lm_head.weight", 5).empty());
}

TEST(TensorParallelTest, NeverCutsAHead) {
  auto projections = [](int64_t key_rows, int64_t head) {
    return AsQwen({{"a.q_proj.weight", kBf16, {512, 4}}, {"a.k_proj.weight", kBf16, {key_rows, 4}}}, head);
  };
  EXPECT_TRUE(MakeTensorParallel(ManifestFor(projections(128, 64)), {.ranks = 2}).ok());
  EXPECT_TRUE(MakeTensorParallel(ManifestFor(projections(256, 128)), {.ranks = 2}).ok());
  EXPECT_THAT(Refusal(AsQwen({{"a.o_proj.weight", kBf16, {4, 512}}}, 128), {.ranks = 8}), HasSubstr("a.o_proj.weight"));
  EXPECT_THAT(Refusal(AsQwen({{"a.v_proj.weight", kBf16, {24, 4}}}, 8), {.ranks = 4}),
              AllOf(HasSubstr("a.v_proj.weight"), HasSubstr("fewer ranks")));
}

TEST(TensorParallelTest, WhatNoSpecSharesOutIsHeldByAll) {
  auto made = MakeTensorParallel(ManifestFor({{"anything", kBf16, {7, 3}}}), {.ranks = 2});
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(PiecesIn(*made, "anything", 1), (std::vector<Piece>{{1, 0, 0, 21, 0}}));
}

TEST(TensorParallelTest, RefusesWhatItCannotShareOut) {
  auto refusal = [](std::vector<TensorSpec> tensors, const TensorParallelOptions& options) {
    return Refusal(AsQwen(std::move(tensors), 8), options);
  };
  EXPECT_THAT(Refusal(OneLayer(), {.ranks = 3}), HasSubstr("1, 2, 4 or 8"));
  EXPECT_THAT(refusal({{"a.mlp.up_proj.weight", kBf16, {9, 4}}}, {.ranks = 2}), HasSubstr("a.mlp.up_proj.weight"));
  EXPECT_THAT(refusal({{"a.mlp.down_proj.weight", kBf16, {4, 9}}}, {.ranks = 2}), HasSubstr("a.mlp.down_proj.weight"));
  EXPECT_THAT(refusal({{"a.mlp.down_proj.weight", kBf16, {4}}}, {.ranks = 2}), HasSubstr("no matrix"));
  EXPECT_THAT(refusal({{"a.gate_proj.weight", kBf16, {8, 4}}, {"a.up_proj.weight", kBf16, {8, 5}}},
                      {.ranks = 2, .fused = true}),
              HasSubstr("a.up_proj.weight cannot be fused"));
}

TEST(TensorParallelTest, PublishedModelsCanBeShared) {
  for (const std::string& name : model::PresetNames()) {
    const model::ModelConfig shape = *model::FindPreset(name);
    const Manifest manifest = *model::MakeManifest(shape, DType::kBFloat16);
    for (int32_t ranks : {1, 2, 4, 8}) {
      SCOPED_TRACE(absl::StrCat(name, " over ", ranks));
      auto made = MakeTensorParallel(manifest, {.ranks = ranks, .fused = true});
      EXPECT_EQ(made.ok(), shape.num_attention_heads % ranks == 0) << made.status();
      if (made.ok()) {
        EXPECT_LE(made->layout.arena_bytes(0), manifest.arena_bytes() / ranks * 107 / 100);
      }
    }
  }
}

}  // namespace
}  // namespace syncopate::synchronizer
