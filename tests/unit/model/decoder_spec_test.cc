#include "model/decoder_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "model/presets.h"
#include "tests/support/small_model.h"
#include "tests/support/status_matchers.h"

namespace syncopate::model {
namespace {

using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelConfig TwoLayers() {
  ModelConfig config;
  config.vocab_size = 10;
  config.num_key_value_heads = 2;
  config.qkv_bias = true;
  return config;
}

std::map<std::string, TensorSpec> ByName(const ModelConfig& config) {
  std::map<std::string, TensorSpec> tensors;
  for (TensorSpec& spec : ParameterSpecs(config, DType::kBFloat16)) tensors[spec.name] = spec;
  return tensors;
}

TEST(DecoderSpecTest, EmbeddingsEachLayerAndTheOutputAreUnits) {
  for (const std::string& name : PresetNames()) {
    const ModelConfig config = *FindPreset(name);
    int32_t unit = 0;
    std::set<int32_t> units;
    for (const TensorSpec& spec : ParameterSpecs(config, DType::kBFloat16)) {
      EXPECT_GE(spec.unit, unit) << name << " " << spec.name;
      unit = spec.unit;
      units.insert(unit);
    }
    EXPECT_EQ(units.size(), static_cast<size_t>(config.num_hidden_layers) + 2) << name;
    EXPECT_EQ(MakeDecoderSpec(config).units(), unit + 1) << name;
  }
}

TEST(DecoderSpecTest, SaysHowEachTensorIsSharedOut) {
  std::map<std::string, TensorSpec> tensors = ByName(TwoLayers());
  const std::string layer = "model.layers.1.";
  const TensorSpec& query = tensors[layer + "self_attn.q_proj.weight"];
  EXPECT_EQ(query.split, Split::kRows);
  EXPECT_EQ(query.head, 16);
  EXPECT_EQ(query.joint, layer + "self_attn.qkv_proj.weight");
  EXPECT_EQ(tensors[layer + "self_attn.v_proj.bias"].joint, layer + "self_attn.qkv_proj.bias");
  const TensorSpec& output = tensors[layer + "self_attn.o_proj.weight"];
  EXPECT_EQ(output.split, Split::kColumns);
  EXPECT_EQ(output.head, 16);
  EXPECT_EQ(output.joint, "");
  EXPECT_EQ(tensors[layer + "mlp.up_proj.weight"].split, Split::kRows);
  EXPECT_EQ(tensors[layer + "mlp.up_proj.weight"].head, 0);
  EXPECT_EQ(tensors[layer + "mlp.down_proj.weight"].split, Split::kColumns);
  EXPECT_EQ(tensors[layer + "input_layernorm.weight"].split, Split::kAll);
  EXPECT_EQ(tensors["model.embed_tokens.weight"].split, Split::kVocabulary);
  EXPECT_EQ(tensors["lm_head.weight"].split, Split::kVocabulary);
}

TEST(DecoderSpecTest, ARoutedLayerHasARouterAndTheTensorsOfEachExpert) {
  const ModelConfig config = syncopate::testing::RoutedModel();
  std::map<std::string, TensorSpec> tensors = ByName(config);
  EXPECT_EQ(tensors["model.layers.0.mlp.gate.weight"].shape, (std::vector<int64_t>{6, 32}));
  EXPECT_EQ(tensors["model.layers.0.mlp.gate.weight"].split, Split::kAll);
  const TensorSpec& up = tensors["model.layers.2.mlp.experts.5.up_proj.weight"];
  EXPECT_EQ(up.shape, (std::vector<int64_t>{16, 32}));
  EXPECT_EQ(up.split, Split::kRows);
  EXPECT_EQ(up.joint, "model.layers.2.mlp.experts.5.gate_up_proj.weight");
  EXPECT_EQ(up.unit, 3);
  EXPECT_EQ(tensors["model.layers.2.mlp.experts.5.down_proj.weight"].split, Split::kColumns);
  EXPECT_EQ(tensors.count("model.layers.0.mlp.up_proj.weight"), 0u);
  EXPECT_EQ(tensors["model.layers.1.mlp.up_proj.weight"].shape[0], 48);
}

TEST(DecoderSpecTest, ProjectionsMayCarryAnAdapterButExpertsAndRouters) {
  const DecoderSpec spec = MakeDecoderSpec(syncopate::testing::RoutedModel());
  const auto sites = [&spec](size_t layer) {
    std::vector<std::string> names;
    for (const ModuleSpec& module : spec.layers[layer].modules) {
      if (module.takes_adapter) names.push_back(module.name);
    }
    return names;
  };
  EXPECT_THAT(sites(0), ElementsAre("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"));
  EXPECT_THAT(sites(1), ElementsAre("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                                    "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"));
}

TEST(DecoderSpecTest, AdaptersComeLastAsOneUnitAndAreCutAsTheirProjections) {
  ModelConfig config = syncopate::testing::WithAdapters(syncopate::testing::GroupedQueryModel());
  const std::vector<TensorSpec> base = ParameterSpecs(config.Base(), DType::kFloat32);
  const std::vector<TensorSpec> specs = ParameterSpecs(config, DType::kFloat32);
  ASSERT_EQ(specs.size(), base.size() + size_t{2} * 7 * 3);
  EXPECT_TRUE(std::equal(base.begin(), base.end(), specs.begin()));
  for (size_t i = base.size(); i < specs.size(); ++i) {
    EXPECT_EQ(specs[i].unit, 5) << specs[i].name;
    EXPECT_TRUE(IsAdapterName(specs[i].name));
  }
  EXPECT_EQ(CountBaseTensors(*MakeManifest(config, DType::kFloat32)), base.size());
  // In a layer, A of each projection comes before B, so that the A of projections with the same input are neighbours.
  for (size_t i = 0; i < 7; ++i) {
    EXPECT_TRUE(absl::EndsWith(specs[base.size() + i].name, ".lora_A.weight")) << specs[base.size() + i].name;
    EXPECT_TRUE(absl::EndsWith(specs[base.size() + 7 + i].name, ".lora_B.weight")) << specs[base.size() + 7 + i].name;
  }
  std::map<std::string, TensorSpec> tensors = ByName(config);
  const std::string layer = "base_model.model.model.layers.1.";
  auto check = [&](const std::string& name, std::vector<int64_t> shape, Split split, int64_t head) {
    const TensorSpec& spec = tensors[layer + name];
    EXPECT_EQ(spec.shape, shape) << name;
    EXPECT_EQ(spec.split, split) << name;
    EXPECT_EQ(spec.head, head) << name;
    EXPECT_EQ(spec.joint, "") << name;
  };
  check("self_attn.k_proj.lora_A.weight", {4, 48}, Split::kAll, 0);
  check("self_attn.k_proj.lora_B.weight", {16, 4}, Split::kRows, 8);
  check("self_attn.o_proj.lora_A.weight", {4, 48}, Split::kColumns, 8);
  check("self_attn.o_proj.lora_B.weight", {48, 4}, Split::kAll, 0);
  check("mlp.up_proj.lora_B.weight", {64, 4}, Split::kRows, 0);
  check("mlp.down_proj.lora_A.weight", {4, 64}, Split::kColumns, 0);
  config.lora.projections = {"v_proj"};
  EXPECT_EQ(ParameterSpecs(config, DType::kFloat32).size(), base.size() + size_t{2} * 3);
}

TEST(DecoderSpecTest, AdaptersThatTheModelCannotHaveAreRefused) {
  const ModelConfig good = syncopate::testing::WithAdapters(syncopate::testing::GroupedQueryModel(), 16);
  EXPECT_THAT(good.Validate(), IsOk());
  auto refused = [&good](auto change) {
    ModelConfig config = good;
    change(config.lora);
    return std::string(config.Validate().message());
  };
  EXPECT_THAT(refused([](LoraConfig& lora) { lora.rank = 17; }), HasSubstr("more than 16, the smaller side of "
                                                                           "model.layers.0.self_attn.k_proj"));
  EXPECT_THAT(refused([](LoraConfig& lora) { lora.alpha = 0; }), HasSubstr("lora.alpha is 0"));
  EXPECT_THAT(refused([](LoraConfig& lora) { lora.projections = {}; }), HasSubstr("lora.target_modules"));
  EXPECT_THAT(refused([](LoraConfig& lora) { lora.projections = {"v_proj", "q_proj"}; }), HasSubstr("in this order"));
  EXPECT_THAT(refused([](LoraConfig& lora) { lora.rank = 0; }), HasSubstr("lora.rank is 0"));
  ModelConfig routed = syncopate::testing::WithAdapters(syncopate::testing::RoutedModel());
  EXPECT_THAT(routed.Validate(), IsOk());  // the dense layer has a feed-forward of that name
  routed.dense_layers = {};
  EXPECT_THAT(std::string(routed.Validate().message()), HasSubstr("gate_proj"));
  EXPECT_THAT(CheckLayerKinds(good, "cpu"), IsOk());
  for (const auto& [rank, fits] : {std::pair<int64_t, bool>{8, true}, {256, true}, {4, false}, {264, false}}) {
    ModelConfig ranked = good;
    ranked.lora.rank = rank;
    EXPECT_EQ(ErrorReason(CheckLayerKinds(ranked, "cuda:0")), fits ? "" : "LORA_RANK_ON_GPU") << rank;
  }
}

TEST(DecoderSpecTest, KindsAndDigestTellSpecsApart) {
  ModelConfig config = syncopate::testing::RoutedModel();
  EXPECT_THAT(LayerKinds(MakeDecoderSpec(config)), ElementsAre("full", "gated", "routed"));
  EXPECT_THAT(LayerKinds(MakeDecoderSpec(TwoLayers())), ElementsAre("full", "gated"));
  std::set<uint64_t> digests = {SpecDigest(MakeDecoderSpec(config))};
  EXPECT_FALSE(digests.insert(SpecDigest(MakeDecoderSpec(config))).second);
  config.layer_windows = {0, 7, 0};
  EXPECT_THAT(LayerKinds(MakeDecoderSpec(config)), ElementsAre("full", "gated", "routed", "window"));
  EXPECT_TRUE(digests.insert(SpecDigest(MakeDecoderSpec(config))).second);
  config.num_experts_per_tok = 3;
  EXPECT_TRUE(digests.insert(SpecDigest(MakeDecoderSpec(config))).second);
  config.norm_topk_prob = false;
  EXPECT_TRUE(digests.insert(SpecDigest(MakeDecoderSpec(config))).second);
  config = syncopate::testing::WithAdapters(config);
  EXPECT_TRUE(digests.insert(SpecDigest(MakeDecoderSpec(config))).second);
  config.lora.rank = 3;
  EXPECT_TRUE(digests.insert(SpecDigest(MakeDecoderSpec(config))).second);
  config.dense_layers = {0};
  EXPECT_TRUE(digests.insert(SpecDigest(MakeDecoderSpec(config))).second);
}

// One product serves q, k and v only if their tensors are neighbours.
TEST(DecoderSpecTest, TensorsOfOneJointFollowEachOther) {
  for (const std::string& name : PresetNames()) {
    std::set<std::string> closed;
    std::string open;
    for (const TensorSpec& spec : ParameterSpecs(*FindPreset(name), DType::kBFloat16)) {
      if (spec.joint == open) continue;
      if (!open.empty()) closed.insert(open);
      open = spec.joint;
      EXPECT_EQ(closed.count(open), 0u) << name << " " << spec.name;
    }
  }
}

TEST(DecoderSpecTest, WhatTheSpecSaysCountsInTheFingerprint) {
  const ModelConfig config = TwoLayers();
  const Manifest manifest = *MakeManifest(config, DType::kBFloat16);
  const auto other = [&](auto change) {
    std::vector<TensorSpec> tensors = ParameterSpecs(config, DType::kBFloat16);
    change(tensors[2]);
    return Manifest::Create(std::move(tensors))->fingerprint();
  };
  std::set<uint64_t> fingerprints = {manifest.fingerprint()};
  EXPECT_TRUE(fingerprints.insert(other([](TensorSpec& spec) { spec.split = Split::kAll; })).second);
  EXPECT_TRUE(fingerprints.insert(other([](TensorSpec& spec) { spec.head = 8; })).second);
  EXPECT_TRUE(fingerprints.insert(other([](TensorSpec& spec) { spec.joint = "x"; })).second);
  EXPECT_FALSE(fingerprints.insert(other([](TensorSpec&) {})).second);
}

}  // namespace
}  // namespace syncopate::model
