#include "model/decoder_spec.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "model/presets.h"

namespace syncopate::model {
namespace {

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

// One product serves q, k and v only if nothing lies between them.
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
