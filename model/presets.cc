#include "model/presets.h"

#include <cstdint>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"

namespace syncopate::model {
namespace {

// The family, which decides everything except the numbers.
enum class Kind { kLlama3, kQwen2, kQwen3, kMistral, kOwn };

struct Preset {
  const char* name;
  Kind kind;
  int64_t layers, hidden, heads, key_value_heads, head_dim, intermediate, vocabulary, context;
  bool tied;
  double theta, eps;
  double llama3_factor = 0;  // Kind::kLlama3
};

constexpr Preset kPresets[] = {
    // name, kind, layers, hidden, heads, kv heads, head, intermediate, vocabulary, context, tied, theta, eps
    {"tiny", Kind::kQwen2, 2, 128, 4, 2, 32, 384, 1000, 512, true, 1e4, 1e-6},
    {"qwen2.5-0.5b", Kind::kQwen2, 24, 896, 14, 2, 64, 4864, 151936, 32768, true, 1e6, 1e-6},
    {"qwen2.5-1.5b", Kind::kQwen2, 28, 1536, 12, 2, 128, 8960, 151936, 131072, true, 1e6, 1e-6},
    {"qwen2.5-3b", Kind::kQwen2, 36, 2048, 16, 2, 128, 11008, 151936, 32768, true, 1e6, 1e-6},
    {"qwen2.5-7b", Kind::kQwen2, 28, 3584, 28, 4, 128, 18944, 152064, 131072, false, 1e6, 1e-6},
    {"qwen2.5-14b", Kind::kQwen2, 48, 5120, 40, 8, 128, 13824, 152064, 131072, false, 1e6, 1e-5},
    {"qwen2.5-32b", Kind::kQwen2, 64, 5120, 40, 8, 128, 27648, 152064, 131072, false, 1e6, 1e-5},
    {"qwen3-0.6b", Kind::kQwen3, 28, 1024, 16, 8, 128, 3072, 151936, 40960, true, 1e6, 1e-6},
    {"qwen3-1.7b", Kind::kQwen3, 28, 2048, 16, 8, 128, 6144, 151936, 40960, true, 1e6, 1e-6},
    {"qwen3-4b", Kind::kQwen3, 36, 2560, 32, 8, 128, 9728, 151936, 40960, true, 1e6, 1e-6},
    {"qwen3-8b", Kind::kQwen3, 36, 4096, 32, 8, 128, 12288, 151936, 40960, false, 1e6, 1e-6},
    {"qwen3-32b", Kind::kQwen3, 64, 5120, 64, 8, 128, 25600, 151936, 40960, false, 1e6, 1e-6},
    {"llama-3.2-1b", Kind::kLlama3, 16, 2048, 32, 8, 64, 8192, 128256, 131072, true, 5e5, 1e-5, 32},
    {"llama-3.2-3b", Kind::kLlama3, 28, 3072, 24, 8, 128, 8192, 128256, 131072, true, 5e5, 1e-5, 32},
    {"llama-3.1-8b", Kind::kLlama3, 32, 4096, 32, 8, 128, 14336, 128256, 131072, false, 5e5, 1e-5, 8},
    {"mistral-7b-v0.3", Kind::kMistral, 32, 4096, 32, 8, 128, 14336, 32768, 32768, false, 1e6, 1e-5},
    {"letters-25m", Kind::kOwn, 8, 512, 8, 8, 64, 1408, 29, 256, false, 1e4, 1e-6},
};

}  // namespace

std::vector<std::string> PresetNames() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) names.push_back(preset.name);
  return names;
}

absl::StatusOr<ModelConfig> FindPreset(const std::string& name) {
  for (const Preset& preset : kPresets) {
    if (preset.name != name) continue;
    ModelConfig config;
    config.vocab_size = preset.vocabulary;
    config.hidden_size = preset.hidden;
    config.intermediate_size = preset.intermediate;
    config.num_hidden_layers = preset.layers;
    config.num_attention_heads = preset.heads;
    config.num_key_value_heads = preset.key_value_heads;
    config.head_dim = preset.head_dim;
    config.max_position_embeddings = preset.context;
    config.rope_theta = preset.theta;
    config.rms_norm_eps = preset.eps;
    config.tie_word_embeddings = preset.tied;
    config.qk_norm = preset.kind == Kind::kQwen3 || preset.kind == Kind::kOwn;
    config.learned_positions = preset.kind == Kind::kOwn;
    config.qkv_bias = preset.kind == Kind::kQwen2;
    if (preset.kind == Kind::kLlama3) {
      config.rope_scaling = {.type = RopeScaling::Type::kLlama3,
                             .factor = preset.llama3_factor,
                             .original_context = 8192,
                             .low_freq_factor = 1,
                             .high_freq_factor = 4};
    }
    return config;
  }
  return Error(absl::StatusCode::kNotFound, "UNKNOWN_MODEL",
               absl::StrFormat("no model \"%s\"; there are %s", name, absl::StrJoin(PresetNames(), ", ")));
}

}  // namespace syncopate::model
