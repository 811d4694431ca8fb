#include "model/hf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/golden_models.h"
#include "tests/support/status_matchers.h"

namespace syncopate::model {
namespace {

using ::syncopate::testing::HasMessage;
using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Json = nlohmann::json;

// A config.json of `architecture` with `changes` merged in. A null in `changes` is a value; it removes nothing.
std::string ConfigText(const std::string& architecture, const Json& changes = Json::object(),
                       const std::vector<std::string>& without = {}) {
  Json json = {{"architectures", {architecture}}, {"hidden_size", 64},        {"intermediate_size", 96},
               {"num_hidden_layers", 2},          {"num_attention_heads", 4}, {"vocab_size", 100},
               {"max_position_embeddings", 128}};
  for (const auto& [key, value] : changes.items()) json[key] = value;
  for (const std::string& key : without) json.erase(key);
  return json.dump();
}

absl::StatusOr<HfModel> Parse(const std::string& text) { return ParseHfConfig(text, "DIR/config.json"); }

ModelConfig GetShape(const std::string& architecture, const Json& changes = Json::object()) {
  auto model = Parse(ConfigText(architecture, changes));
  EXPECT_THAT(model, IsOk());
  return model.ok() ? model->config : ModelConfig();
}

TEST(HfConfigTest, TellsTheFamiliesApart) {
  const ModelConfig llama = GetShape("LlamaForCausalLM");
  EXPECT_FALSE(llama.qkv_bias || llama.output_bias || llama.mlp_bias || llama.qk_norm || llama.tie_word_embeddings);
  EXPECT_FALSE(llama.learned_positions);
  const ModelConfig biased = GetShape("LlamaForCausalLM", {{"attention_bias", true}, {"mlp_bias", true}});
  EXPECT_TRUE(biased.qkv_bias && biased.output_bias && biased.mlp_bias);
  const ModelConfig qwen2 = GetShape("Qwen2ForCausalLM", {{"tie_word_embeddings", true}});
  EXPECT_TRUE(qwen2.qkv_bias && qwen2.tie_word_embeddings);
  EXPECT_FALSE(qwen2.output_bias || qwen2.qk_norm);
  const ModelConfig qwen3 = GetShape("Qwen3ForCausalLM", {{"head_dim", 32}});
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_FALSE(qwen3.qkv_bias);
  EXPECT_EQ(qwen3.head_dim, 32);
  EXPECT_FALSE(GetShape("MistralForCausalLM").qkv_bias);
}

TEST(HfConfigTest, TheModelTypeIsEnough) {
  auto model = Parse(ConfigText("", {{"model_type", "qwen2"}, {"architectures", nullptr}}));
  ASSERT_THAT(model, IsOk());
  EXPECT_TRUE(model->config.qkv_bias);
}

TEST(HfConfigTest, AbsentAndNullKeysHaveDefaults) {
  for (const Json& changes : {Json::object(), Json{{"head_dim", nullptr},
                                                   {"num_key_value_heads", nullptr},
                                                   {"rope_scaling", nullptr},
                                                   {"rms_norm_eps", nullptr}}}) {
    const ModelConfig config = GetShape("LlamaForCausalLM", changes);
    EXPECT_EQ(config.head_dim, 16);
    EXPECT_EQ(config.num_key_value_heads, 4);
    EXPECT_EQ(config.rope_theta, 10000);
    EXPECT_EQ(config.rms_norm_eps, 1e-6);
    EXPECT_EQ(config.rope_scaling, RopeScaling());
  }
}

TEST(HfConfigTest, ReadsEverySpellingOfTheRope) {
  const Json llama3 = {
      {"factor", 8.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4}, {"original_max_position_embeddings", 64}};
  Json new_style = llama3, middle = llama3, old = llama3;
  new_style.update({{"rope_type", "llama3"}, {"rope_theta", 5e5}});
  middle.update({{"rope_type", "llama3"}});
  old.update({{"type", "llama3"}});
  const ModelConfig expected = GetShape("LlamaForCausalLM", {{"rope_parameters", new_style}});
  EXPECT_EQ(expected.rope_theta, 5e5);
  EXPECT_EQ(expected.rope_scaling.type, RopeScaling::Type::kLlama3);
  EXPECT_EQ(expected.rope_scaling.original_context, 64);
  for (const Json& scaling : {middle, old}) {
    const ModelConfig config = GetShape("LlamaForCausalLM", {{"rope_theta", 500000}, {"rope_scaling", scaling}});
    EXPECT_EQ(config.rope_theta, expected.rope_theta);
    EXPECT_EQ(config.rope_scaling, expected.rope_scaling);
  }
}

TEST(HfConfigTest, YarnComputesWhatTheFileLeavesOut) {
  const Json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}};
  const RopeScaling plain = GetShape("Qwen2ForCausalLM", {{"rope_scaling", yarn}}).rope_scaling;
  EXPECT_EQ(plain.original_context, 128);
  EXPECT_EQ(plain.beta_fast, 32);
  EXPECT_EQ(plain.beta_slow, 1);
  EXPECT_NEAR(plain.attention_factor, 0.1 * std::log(4.0) + 1, 1e-12);
  Json full = yarn;
  full.update({{"attention_factor", 1.5},
               {"beta_fast", 16},
               {"beta_slow", 2},
               {"truncate", false},
               {"original_max_position_embeddings", 32}});
  const RopeScaling given = GetShape("Qwen2ForCausalLM", {{"rope_scaling", full}}).rope_scaling;
  EXPECT_EQ(given.attention_factor, 1.5);
  EXPECT_EQ(given.original_context, 32);
  EXPECT_FALSE(given.truncate);
  full.update({{"attention_factor", nullptr}, {"mscale", 0.5}, {"mscale_all_dim", 2}});
  EXPECT_NEAR(GetShape("Qwen2ForCausalLM", {{"rope_scaling", full}}).rope_scaling.attention_factor,
              (0.05 * std::log(4.0) + 1) / (0.2 * std::log(4.0) + 1), 1e-12);
}

TEST(HfConfigTest, LayersSlideWhereTheFileSaysSo) {
  auto windows = [](const std::string& architecture, const Json& changes) {
    auto model = Parse(ConfigText(architecture, changes));
    EXPECT_THAT(model, IsOk());
    return model->config.layer_windows;
  };
  using Windows = std::vector<int64_t>;  // one window for each of two layers
  EXPECT_EQ(windows("LlamaForCausalLM", {{"sliding_window", 32}}), Windows());
  EXPECT_EQ(windows("MistralForCausalLM", {{"sliding_window", nullptr}}), Windows());
  EXPECT_EQ(windows("MistralForCausalLM", {{"sliding_window", 32}}), Windows({32, 32}));
  EXPECT_EQ(windows("MistralForCausalLM", Json::object()), Windows({4096, 4096}));  // the default of transformers
  EXPECT_EQ(windows("Qwen2ForCausalLM", {{"sliding_window", 32}, {"use_sliding_window", false}}), Windows());
  const Json slides = {{"sliding_window", 32}, {"use_sliding_window", true}};
  EXPECT_EQ(windows("Qwen2ForCausalLM", slides), Windows({0, 0}));  // the window applies from layer 28 on
  Json from = slides, named = slides;
  from["max_window_layers"] = 1;
  named["layer_types"] = {"sliding_attention", "full_attention"};
  EXPECT_EQ(windows("Qwen2ForCausalLM", from), Windows({0, 32}));
  EXPECT_EQ(windows("Qwen3ForCausalLM", named), Windows({32, 0}));
}

TEST(HfConfigTest, LayersAreRoutedWhereTheFileSaysSo) {
  auto routed = [](const Json& changes) {
    Json with = {{"num_hidden_layers", 6}};
    with.update(changes);
    const ModelConfig config = GetShape("Qwen3MoeForCausalLM", with);
    std::vector<int64_t> layers;
    for (int64_t layer = 0; layer < 6; ++layer) {
      if (config.is_routed(layer)) layers.push_back(layer);
    }
    return layers;
  };
  EXPECT_THAT(routed(Json::object()), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(routed({{"mlp_only_layers", {0, 4}}}), ElementsAre(1, 2, 3, 5));
  EXPECT_THAT(routed({{"decoder_sparse_step", 3}}), ElementsAre(2, 5));
  EXPECT_THAT(routed({{"decoder_sparse_step", 2}, {"mlp_only_layers", {3}}}), ElementsAre(1, 5));
  const ModelConfig plain = GetShape("Qwen3MoeForCausalLM");
  EXPECT_TRUE(plain.qk_norm);
  EXPECT_FALSE(plain.norm_topk_prob);
  EXPECT_EQ(plain.num_experts, 128);
  EXPECT_EQ(plain.num_experts_per_tok, 8);
  EXPECT_EQ(plain.moe_intermediate_size, 768);
  EXPECT_EQ(GetShape("Qwen3MoeForCausalLM", {{"num_local_experts", 16}}).num_experts, 16);
  EXPECT_TRUE(GetShape("Qwen3MoeForCausalLM", {{"norm_topk_prob", true}}).norm_topk_prob);
  EXPECT_THAT(CheckLayerKinds(plain, "cuda:0"), HasReason("EXPERTS_ON_GPU"));
  EXPECT_THAT(CheckLayerKinds(plain, "cpu"), IsOk());
}

TEST(HfConfigTest, ExpertsThatAreNotBuiltOrCannotBeAreRefusedByTheirKey) {
  auto refused = [](const Json& changes) { return Parse(ConfigText("Qwen3MoeForCausalLM", changes)); };
  EXPECT_THAT(refused({{"shared_expert_intermediate_size", 512}}),
              AllOf(HasReason("UNKNOWN_MODEL"), HasMessage(HasSubstr("shared_expert_intermediate_size is 512"))));
  EXPECT_THAT(refused({{"shared_expert_intermediate_size", 0}}), IsOk());
  EXPECT_THAT(refused({{"mlp_only_layers", {2}}}), HasMessage(HasSubstr("mlp_only_layers names 2")));
  EXPECT_THAT(refused({{"mlp_only_layers", 1}}), HasReason("BAD_MODEL_CONFIG"));
  EXPECT_THAT(refused({{"num_experts", 4}, {"num_experts_per_tok", 5}}),
              HasMessage(HasSubstr("num_experts_per_tok is 5")));
  EXPECT_THAT(refused({{"num_experts", 0}}), HasReason("BAD_MODEL_CONFIG"));
  EXPECT_THAT(refused({{"num_experts", 4096}, {"num_hidden_layers", 65536}}), HasReason("BAD_MODEL_CONFIG"));
}

TEST(HfConfigTest, AWindowThatReachesOverTheContextIsNone) {
  auto model = Parse(ConfigText("MistralForCausalLM", {{"sliding_window", 32}}));
  EXPECT_FALSE(model->WithContext(32)->has_windows());
  EXPECT_TRUE(model->WithContext(32)->layer_windows.empty());
  EXPECT_EQ(model->WithContext(33)->window(1), 32);
  EXPECT_EQ(model->WithContext(20)->max_position_embeddings, 20);
  EXPECT_THAT(model->WithContext(129), HasReason("CONTEXT_TOO_LONG"));
  EXPECT_THAT(model->WithContext(129), HasMessage(HasSubstr("max_position_embeddings 128")));
  EXPECT_THAT(CheckLayerKinds(*model->WithContext(33), "cuda:0"), HasReason("WINDOW_ON_GPU"));
  EXPECT_THAT(CheckLayerKinds(*model->WithContext(33), "cpu"), IsOk());
  EXPECT_THAT(CheckLayerKinds(*model->WithContext(32), "cuda:0"), IsOk());
}

TEST(HfConfigTest, EndOfSequenceIsOneIdOrSeveral) {
  EXPECT_THAT(Parse(ConfigText("LlamaForCausalLM"))->eos_token_ids, IsEmpty());
  EXPECT_THAT(Parse(ConfigText("LlamaForCausalLM", {{"eos_token_id", 7}}))->eos_token_ids, ElementsAre(7));
  EXPECT_THAT(Parse(ConfigText("LlamaForCausalLM", {{"eos_token_id", {7, 9}}}))->eos_token_ids, ElementsAre(7, 9));
}

TEST(HfConfigTest, AnEndOutsideTheVocabularyIsAnErrorOfGenerationConfigToo) {
  const std::filesystem::path folder = ::testing::TempDir() + "/eos-outside";
  std::filesystem::remove_all(folder);  // left by an earlier run
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << ConfigText("LlamaForCausalLM", {{"eos_token_id", 99}});
  EXPECT_THAT(ReadHfConfig(folder.string())->eos_token_ids, ElementsAre(99));
  std::ofstream(folder / "generation_config.json") << R"({"eos_token_id": [99, 100]})";
  const auto model = ReadHfConfig(folder.string());
  EXPECT_THAT(model, HasReason("BAD_MODEL_CONFIG"));
  EXPECT_THAT(model,
              HasMessage(AllOf(HasSubstr("generation_config.json"), HasSubstr("outside the vocabulary of 100"))));
}

TEST(HfConfigTest, GoldenModelsAreWhatTheirFoldersSay) {
  EXPECT_THAT(ReadHfConfig(testing::GoldenModelPath("qwen2-tied"))->eos_token_ids, ElementsAre(71, 70));
  EXPECT_EQ(ReadHfConfig(testing::GoldenModelPath("qwen3-yarn"))->config.rope_scaling.type, RopeScaling::Type::kYarn);
  EXPECT_EQ(ReadHfConfig(testing::GoldenModelPath("llama-linear"))->config.rope_scaling.factor, 2);
  EXPECT_THAT(ReadHfConfig("/nowhere"), HasReason("NO_MODEL"));
}

// Each file has one error, whose message names the key beside the file.
TEST(HfConfigTest, RefusesWhatItCannotReadAndNamesTheKey) {
  const std::string llama = "LlamaForCausalLM";
  auto scaled = [&](const Json& scaling) { return ConfigText(llama, {{"rope_scaling", scaling}}); };
  const struct {
    const char* reason;
    const char* named;
    std::string text;
  } kCases[] = {
      {"BAD_MODEL_CONFIG", "not well formed", "{"},
      {"BAD_MODEL_CONFIG", "outermost", "[]"},
      {"BAD_MODEL_CONFIG", "comes twice", R"({"vocab_size": 1, "vocab_size": 2})"},
      {"BAD_MODEL_CONFIG", "nested deeper", std::string(100, '[')},
      {"BAD_MODEL_CONFIG", "architectures is missing", "{}"},
      {"BAD_MODEL_CONFIG", "architectures", ConfigText(llama, {{"architectures", Json::array()}})},
      {"UNKNOWN_MODEL", "architectures is [\"GPT2LMHeadModel\"]", ConfigText("GPT2LMHeadModel")},
      {"UNKNOWN_MODEL", "MixtralForCausalLM", ConfigText("MixtralForCausalLM")},
      {"BAD_MODEL_CONFIG", "model_type", ConfigText(llama, {{"model_type", "qwen2"}})},
      {"UNKNOWN_MODEL", "hidden_act is \"gelu\"", ConfigText(llama, {{"hidden_act", "gelu"}})},
      {"UNKNOWN_MODEL", "quantization_config", ConfigText(llama, {{"quantization_config", {{"bits", 4}}}})},
      {"UNKNOWN_MODEL", "partial_rotary_factor is 0.5", ConfigText(llama, {{"partial_rotary_factor", 0.5}})},
      {"UNKNOWN_MODEL", "rope_scaling.partial_rotary_factor", scaled({{"partial_rotary_factor", 0.5}})},
      {"BAD_MODEL_CONFIG", "hidden_size is missing", ConfigText(llama, {}, {"hidden_size"})},
      {"BAD_MODEL_CONFIG", "vocab_size is missing", ConfigText(llama, {{"vocab_size", nullptr}})},
      {"BAD_MODEL_CONFIG", "hidden_size is \"64\"", ConfigText(llama, {{"hidden_size", "64"}})},
      {"BAD_MODEL_CONFIG", "hidden_size is -64", ConfigText(llama, {{"hidden_size", -64}})},
      {"BAD_MODEL_CONFIG", "num_hidden_layers", ConfigText(llama, {{"num_hidden_layers", 1000000}})},
      {"BAD_MODEL_CONFIG", "vocab_size", ConfigText(llama, {{"vocab_size", uint64_t{1} << 63}})},
      {"BAD_MODEL_CONFIG", "num_key_value_heads 3", ConfigText(llama, {{"num_key_value_heads", 3}})},
      {"BAD_MODEL_CONFIG", "head_dim is missing", ConfigText(llama, {{"num_attention_heads", 3}})},
      {"BAD_MODEL_CONFIG", "head_dim 7", ConfigText(llama, {{"head_dim", 7}})},
      {"BAD_MODEL_CONFIG", "tie_word_embeddings is 1", ConfigText(llama, {{"tie_word_embeddings", 1}})},
      {"BAD_MODEL_CONFIG", "rms_norm_eps", ConfigText(llama, {{"rms_norm_eps", 0}})},
      {"BAD_MODEL_CONFIG", "rope_theta", ConfigText(llama, {{"rope_theta", "many"}})},
      {"BAD_MODEL_CONFIG", "rope_scaling is 8", scaled(8)},
      {"UNKNOWN_MODEL", "rope_scaling.rope_type is \"longrope\"", scaled({{"rope_type", "longrope"}})},
      {"UNKNOWN_MODEL", "rope_scaling.type is \"dynamic\"", scaled({{"type", "dynamic"}, {"factor", 2}})},
      {"BAD_MODEL_CONFIG", "rope_scaling.factor is missing", scaled({{"rope_type", "linear"}})},
      {"BAD_MODEL_CONFIG", "rope_scaling.factor is 0", scaled({{"rope_type", "linear"}, {"factor", 0}})},
      {"BAD_MODEL_CONFIG", "rope_scaling.low_freq_factor", scaled({{"rope_type", "llama3"}, {"factor", 2}})},
      {"BAD_MODEL_CONFIG", "rope_scaling.high_freq_factor",
       scaled({{"rope_type", "llama3"}, {"factor", 2}, {"low_freq_factor", 4}, {"high_freq_factor", 4}})},
      {"BAD_MODEL_CONFIG", "eos_token_id", ConfigText(llama, {{"eos_token_id", "</s>"}})},
      {"BAD_MODEL_CONFIG", "eos_token_id is 100, outside the vocabulary of 100",
       ConfigText(llama, {{"eos_token_id", 100}})},
      {"BAD_MODEL_CONFIG", "outside the vocabulary", ConfigText(llama, {{"eos_token_id", {7, 151645}}})},
      {"BAD_MODEL_CONFIG", "layer_types", ConfigText("Qwen2ForCausalLM", {{"layer_types", {"full_attention"}}})},
      {"UNKNOWN_MODEL", "layer_types", ConfigText("Qwen2ForCausalLM", {{"layer_types", {"chunked", "chunked"}}})},
  };
  for (const auto& bad : kCases) {
    const auto model = Parse(bad.text);
    EXPECT_THAT(model, HasReason(bad.reason)) << bad.text;
    EXPECT_THAT(model, HasMessage(AllOf(HasSubstr("DIR/config.json: "), HasSubstr(bad.named)))) << bad.text;
  }
}

}  // namespace
}  // namespace syncopate::model
