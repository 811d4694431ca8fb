#include "model/hf_config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/file_system.h"
#include "base/strict_json.h"
#include "model/model_folder.h"
#include "model/rope.h"

namespace syncopate::model {
namespace {

using Json = nlohmann::json;

constexpr JsonLimits kLimits = {.max_bytes = 4 << 20, .max_depth = 32};  // label maps of some models are long
constexpr double kDefaultTheta = 10000.0;
// Defaults of transformers for absent keys: published files leave out keys that have these values.
constexpr int64_t kDefaultWindow = 4096;
constexpr int64_t kDefaultWindowLayers = 28;
constexpr int64_t kDefaultExperts = 128;
constexpr int64_t kDefaultExpertsPerToken = 8;
constexpr int64_t kDefaultExpertSize = 768;
constexpr int64_t kLargest = int64_t{1} << 40;

enum class Family { kLlama, kQwen2, kQwen3, kQwen3Moe, kMistral };

struct FamilyName {
  const char* architecture;
  const char* model_type;
  Family family;
};
constexpr FamilyName kFamilies[] = {{"LlamaForCausalLM", "llama", Family::kLlama},
                                    {"Qwen2ForCausalLM", "qwen2", Family::kQwen2},
                                    {"Qwen3ForCausalLM", "qwen3", Family::kQwen3},
                                    {"Qwen3MoeForCausalLM", "qwen3_moe", Family::kQwen3Moe},
                                    {"MistralForCausalLM", "mistral", Family::kMistral}};

// One object of the file, with a path for messages. A key with the value null counts as absent, as in transformers.
class Section {
 public:
  Section(const Json& json, std::string source, std::string path = "")
      : json_(json), source_(std::move(source)), path_(std::move(path)) {}

  bool Has(const std::string& key) const { return json_.contains(key) && !json_[key].is_null(); }
  bool IsNull(const std::string& key) const { return json_.contains(key) && json_[key].is_null(); }
  const Json& at(const std::string& key) const { return json_[key]; }

  absl::Status Bad(const std::string& key, const std::string& what) const {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_MODEL_CONFIG",
                 absl::StrCat(source_, ": ", path_, key, " ", what));
  }
  absl::Status NotBuilt(const std::string& key, const std::string& what) const {
    return Error(absl::StatusCode::kInvalidArgument, "UNKNOWN_MODEL",
                 absl::StrCat(source_, ": ", path_, key, " ", what));
  }

  absl::StatusOr<int64_t> Count(const std::string& key) const {
    if (!Has(key)) return Bad(key, "is missing");
    const Json& value = at(key);
    if (!value.is_number_unsigned() || value.get<uint64_t>() == 0 || value.get<uint64_t>() > uint64_t{kLargest}) {
      return Bad(key, absl::StrCat("is ", Shown(key), "; it must be a positive whole number"));
    }
    return value.get<int64_t>();
  }
  absl::StatusOr<int64_t> CountOr(const std::string& key, int64_t otherwise) const {
    return Has(key) ? Count(key) : absl::StatusOr<int64_t>(otherwise);
  }
  absl::StatusOr<double> Number(const std::string& key) const {
    if (!Has(key)) return Bad(key, "is missing");
    if (!at(key).is_number() || !std::isfinite(at(key).get<double>())) {
      return Bad(key, absl::StrCat("is ", Shown(key), "; it must be a number"));
    }
    return at(key).get<double>();
  }
  absl::StatusOr<double> NumberOr(const std::string& key, double otherwise) const {
    return Has(key) ? Number(key) : absl::StatusOr<double>(otherwise);
  }
  absl::StatusOr<double> Positive(const std::string& key) const {
    SYNCOPATE_ASSIGN_OR_RETURN(double value, Number(key));
    if (!(value > 0)) return Bad(key, absl::StrCat("is ", Shown(key), "; it must be positive"));
    return value;
  }
  absl::StatusOr<double> PositiveOr(const std::string& key, double otherwise) const {
    return Has(key) ? Positive(key) : absl::StatusOr<double>(otherwise);
  }
  absl::StatusOr<bool> BoolOr(const std::string& key, bool otherwise) const {
    if (!Has(key)) return otherwise;
    if (!at(key).is_boolean()) return Bad(key, absl::StrCat("is ", Shown(key), "; it must be true or false"));
    return at(key).get<bool>();
  }
  absl::StatusOr<std::string> TextOr(const std::string& key, const std::string& otherwise) const {
    if (!Has(key)) return otherwise;
    if (!at(key).is_string()) return Bad(key, absl::StrCat("is ", Shown(key), "; it must be a word"));
    return at(key).get<std::string>();
  }
  absl::StatusOr<Section> Below(const std::string& key) const {
    if (!at(key).is_object()) return Bad(key, absl::StrCat("is ", Shown(key), "; it must be an object"));
    return Section(at(key), source_, absl::StrCat(path_, key, "."));
  }

  // The value as text for messages.
  std::string Shown(const std::string& key) const {
    constexpr size_t kShown = 64;
    std::string text = at(key).dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
    return text.size() <= kShown ? text : absl::StrCat(text.substr(0, kShown), "...");
  }

 private:
  const Json& json_;
  const std::string source_;
  const std::string path_;
};

std::string KnownArchitectures() {
  std::vector<std::string> names;
  for (const FamilyName& known : kFamilies) names.push_back(known.architecture);
  return absl::StrCat("; what can be read is ", absl::StrJoin(names, ", "));
}

// The family, by architectures[0], else by model_type; both must agree.
absl::StatusOr<Family> ReadFamily(const Section& file) {
  SYNCOPATE_ASSIGN_OR_RETURN(const std::string type, file.TextOr("model_type", ""));
  std::string architecture;
  if (file.Has("architectures")) {
    const Json& list = file.at("architectures");
    if (!list.is_array() || list.size() != 1 || !list[0].is_string()) {
      return file.Bad("architectures", absl::StrCat("is ", file.Shown("architectures"), "; it must be a list of one"));
    }
    architecture = list[0].get<std::string>();
  }
  if (architecture.empty() && type.empty()) {
    return file.Bad("architectures", absl::StrCat("is missing", KnownArchitectures()));
  }
  for (const FamilyName& known : kFamilies) {
    if (architecture.empty() ? type != known.model_type : architecture != known.architecture) continue;
    if (type.empty() || type == known.model_type) return known.family;
    return file.Bad("model_type", absl::StrCat("is ", file.Shown("model_type"), ", which is not that of architectures ",
                                               known.architecture));
  }
  const std::string key = architecture.empty() ? "model_type" : "architectures";
  return file.NotBuilt(key, absl::StrCat("is ", file.Shown(key), KnownArchitectures()));
}

// Refuses settings that change the computation and are not supported.
absl::Status RefuseWhatIsNotBuilt(const Section& file) {
  SYNCOPATE_ASSIGN_OR_RETURN(const std::string activation, file.TextOr("hidden_act", "silu"));
  if (activation != "silu" && activation != "swish") {
    return file.NotBuilt("hidden_act", absl::StrCat("is ", file.Shown("hidden_act"), "; only silu is built"));
  }
  for (const char* key : {"quantization_config", "compression_config"}) {
    if (file.Has(key))
      return file.NotBuilt(key, "is there, but quantised weights cannot be read; convert them to bf16");
  }
  return absl::OkStatus();
}

absl::Status RefusePartialRotation(const Section& section) {
  SYNCOPATE_ASSIGN_OR_RETURN(double share, section.NumberOr("partial_rotary_factor", 1));
  if (share == 1) return absl::OkStatus();
  return section.NotBuilt("partial_rotary_factor", absl::StrCat("is ", section.Shown("partial_rotary_factor"),
                                                                "; only whole heads are rotated (1)"));
}

absl::Status ReadYarn(const Section& rope, double context, RopeScaling* scaling) {
  scaling->type = RopeScaling::Type::kYarn;
  // A factor that is not given follows from the two contexts.
  if (!rope.Has("factor")) scaling->factor = context / scaling->original_context;
  SYNCOPATE_ASSIGN_OR_RETURN(scaling->beta_fast, rope.PositiveOr("beta_fast", scaling->beta_fast));
  SYNCOPATE_ASSIGN_OR_RETURN(scaling->beta_slow, rope.PositiveOr("beta_slow", scaling->beta_slow));
  SYNCOPATE_ASSIGN_OR_RETURN(scaling->truncate, rope.BoolOr("truncate", scaling->truncate));
  SYNCOPATE_ASSIGN_OR_RETURN(const double mscale, rope.NumberOr("mscale", 0));
  SYNCOPATE_ASSIGN_OR_RETURN(const double mscale_all_dim, rope.NumberOr("mscale_all_dim", 0));
  SYNCOPATE_ASSIGN_OR_RETURN(
      scaling->attention_factor,
      rope.PositiveOr("attention_factor", YarnAttentionFactor(scaling->factor, mscale, mscale_all_dim)));
  return absl::OkStatus();
}

absl::Status ReadLlama3(const Section& rope, RopeScaling* scaling) {
  scaling->type = RopeScaling::Type::kLlama3;
  SYNCOPATE_ASSIGN_OR_RETURN(scaling->low_freq_factor, rope.Positive("low_freq_factor"));
  SYNCOPATE_ASSIGN_OR_RETURN(scaling->high_freq_factor, rope.Positive("high_freq_factor"));
  if (scaling->high_freq_factor > scaling->low_freq_factor) return absl::OkStatus();
  return rope.Bad("high_freq_factor", absl::StrCat("is ", rope.Shown("high_freq_factor"),
                                                   "; it must be greater than "
                                                   "low_freq_factor ",
                                                   rope.Shown("low_freq_factor")));
}

// Reads rope_scaling (before transformers 5, with `type`, later `rope_type`) or rope_parameters (since then).
absl::Status ReadScaling(const Section& file, const Section& rope, HfModel* model) {
  const std::string key = rope.Has("rope_type") ? "rope_type" : "type";
  SYNCOPATE_ASSIGN_OR_RETURN(const std::string type, rope.TextOr(key, "default"));
  RopeScaling& scaling = model->config.rope_scaling;
  if (type == "default") return absl::OkStatus();
  if (type != "linear" && type != "llama3" && type != "yarn") {
    return rope.NotBuilt(key, absl::StrCat("is ", rope.Shown(key), "; default, linear, llama3 and yarn are built"));
  }
  const double context = static_cast<double>(model->config.max_position_embeddings);
  // The key may be outside the rope object too, and takes precedence there.
  const Section& original = file.Has("original_max_position_embeddings") ? file : rope;
  SYNCOPATE_ASSIGN_OR_RETURN(scaling.original_context,
                             original.PositiveOr("original_max_position_embeddings", context));
  if (type != "yarn" || rope.Has("factor")) {
    SYNCOPATE_ASSIGN_OR_RETURN(scaling.factor, rope.Positive("factor"));
  }
  if (type == "yarn") return ReadYarn(rope, context, &scaling);
  if (type == "llama3") return ReadLlama3(rope, &scaling);
  scaling.type = RopeScaling::Type::kLinear;
  scaling.original_context = 0;
  return absl::OkStatus();
}

absl::Status ReadRope(const Section& file, HfModel* model) {
  SYNCOPATE_RETURN_IF_ERROR(RefusePartialRotation(file));
  SYNCOPATE_ASSIGN_OR_RETURN(double theta, file.PositiveOr("rope_theta", kDefaultTheta));
  // An empty object counts as absent; if both are present, transformers uses rope_scaling.
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!file.Has(key)) continue;
    SYNCOPATE_ASSIGN_OR_RETURN(const Section rope, file.Below(key));
    if (file.at(key).empty()) continue;
    SYNCOPATE_RETURN_IF_ERROR(RefusePartialRotation(rope));
    SYNCOPATE_ASSIGN_OR_RETURN(theta, rope.PositiveOr("rope_theta", theta));
    SYNCOPATE_RETURN_IF_ERROR(ReadScaling(file, rope, model));
    break;
  }
  if (theta <= 1) return file.Bad("rope_theta", absl::StrCat("is ", theta, "; it must be greater than 1"));
  model->config.rope_theta = theta;
  return absl::OkStatus();
}

absl::Status ReadShape(const Section& file, ModelConfig* config) {
  SYNCOPATE_ASSIGN_OR_RETURN(config->vocab_size, file.Count("vocab_size"));
  SYNCOPATE_ASSIGN_OR_RETURN(config->hidden_size, file.Count("hidden_size"));
  SYNCOPATE_ASSIGN_OR_RETURN(config->intermediate_size, file.Count("intermediate_size"));
  SYNCOPATE_ASSIGN_OR_RETURN(config->num_hidden_layers, file.Count("num_hidden_layers"));
  SYNCOPATE_ASSIGN_OR_RETURN(config->num_attention_heads, file.Count("num_attention_heads"));
  SYNCOPATE_ASSIGN_OR_RETURN(config->num_key_value_heads,
                             file.CountOr("num_key_value_heads", config->num_attention_heads));
  // Older files have no head_dim: it is then hidden_size / num_attention_heads.
  const int64_t share = config->hidden_size / config->num_attention_heads;
  if (!file.Has("head_dim") && share * config->num_attention_heads != config->hidden_size) {
    return file.Bad("head_dim", absl::StrCat("is missing, and hidden_size ", config->hidden_size,
                                             " is no multiple of num_attention_heads ", config->num_attention_heads));
  }
  SYNCOPATE_ASSIGN_OR_RETURN(config->head_dim, file.CountOr("head_dim", share));
  SYNCOPATE_ASSIGN_OR_RETURN(config->max_position_embeddings, file.Count("max_position_embeddings"));
  SYNCOPATE_ASSIGN_OR_RETURN(config->rms_norm_eps, file.PositiveOr("rms_norm_eps", 1e-6));
  SYNCOPATE_ASSIGN_OR_RETURN(config->tie_word_embeddings, file.BoolOr("tie_word_embeddings", false));
  return absl::OkStatus();
}

absl::Status ReadBiases(const Section& file, Family family, ModelConfig* config) {
  config->qk_norm = family == Family::kQwen3 || family == Family::kQwen3Moe;
  config->qkv_bias = family == Family::kQwen2;  // implied by the family: there is no key for it
  if (family == Family::kLlama || config->qk_norm) {
    SYNCOPATE_ASSIGN_OR_RETURN(config->qkv_bias, file.BoolOr("attention_bias", false));
    config->output_bias = config->qkv_bias;
  }
  if (family == Family::kLlama) {
    SYNCOPATE_ASSIGN_OR_RETURN(config->mlp_bias, file.BoolOr("mlp_bias", false));
  }
  return absl::OkStatus();
}

// The layers that `mlp_only_layers` names have one feed-forward; of the others each decoder_sparse_step-th is routed.
absl::Status ReadExperts(const Section& file, ModelConfig* config) {
  // Shared experts, which other families have, would change the computation.
  for (const char* key : {"shared_expert_intermediate_size", "n_shared_experts", "num_shared_experts"}) {
    if (file.Has(key) && file.at(key) != 0) {
      return file.NotBuilt(key,
                           absl::StrCat("is ", file.Shown(key), "; experts that every token passes are not built"));
    }
  }
  // Newer files may call the key num_local_experts.
  const char* const key =
      file.Has("num_experts") || !file.Has("num_local_experts") ? "num_experts" : "num_local_experts";
  SYNCOPATE_ASSIGN_OR_RETURN(config->num_experts, file.CountOr(key, kDefaultExperts));
  SYNCOPATE_ASSIGN_OR_RETURN(config->num_experts_per_tok, file.CountOr("num_experts_per_tok", kDefaultExpertsPerToken));
  SYNCOPATE_ASSIGN_OR_RETURN(config->moe_intermediate_size, file.CountOr("moe_intermediate_size", kDefaultExpertSize));
  SYNCOPATE_ASSIGN_OR_RETURN(config->norm_topk_prob, file.BoolOr("norm_topk_prob", false));
  SYNCOPATE_ASSIGN_OR_RETURN(const int64_t every, file.CountOr("decoder_sparse_step", 1));
  std::set<int64_t> dense;
  for (int64_t layer = 0; layer < config->num_hidden_layers; ++layer) {
    if ((layer + 1) % every != 0) dense.insert(layer);
  }
  if (file.Has("mlp_only_layers")) {
    const Json& named = file.at("mlp_only_layers");
    if (!named.is_array()) return file.Bad("mlp_only_layers", "must be a list of layers");
    for (const Json& layer : named) {
      if (!layer.is_number_unsigned() || layer.get<uint64_t>() >= static_cast<uint64_t>(config->num_hidden_layers)) {
        return file.Bad("mlp_only_layers", absl::StrCat("names ", layer.dump(), "; there are layers 0 to ",
                                                        config->num_hidden_layers - 1));
      }
      dense.insert(layer.get<int64_t>());
    }
  }
  config->dense_layers.assign(dense.begin(), dense.end());
  return absl::OkStatus();
}

// For each layer, whether `layer_types` calls it sliding; nullopt if the key is absent.
absl::StatusOr<std::optional<std::vector<bool>>> ReadSlidingLayers(const Section& file, int64_t layers) {
  if (!file.Has("layer_types")) return std::optional<std::vector<bool>>();
  const Json& types = file.at("layer_types");
  if (!types.is_array() || static_cast<int64_t>(types.size()) != layers) {
    return file.Bad("layer_types", absl::StrCat("must be a list of num_hidden_layers ", layers, " words"));
  }
  std::vector<bool> slides;
  for (const Json& type : types) {
    if (type != "sliding_attention" && type != "full_attention") {
      return file.NotBuilt("layer_types", "names a layer that is neither full_attention nor sliding_attention");
    }
    slides.push_back(type == "sliding_attention");
  }
  return std::optional<std::vector<bool>>(std::move(slides));
}

// The window of each layer; empty if no layer has a window. Mistral has windows in all layers unless the key is null.
// Qwen has windows if a key says so, in the layers of `layer_types`, or else from layer max_window_layers on. Absent
// keys have the defaults of transformers.
absl::StatusOr<std::vector<int64_t>> ReadWindows(const Section& file, Family family, int64_t layers) {
  std::vector<int64_t> windows;
  if (family == Family::kLlama) return windows;
  SYNCOPATE_ASSIGN_OR_RETURN(const int64_t window,
                             file.CountOr("sliding_window", file.IsNull("sliding_window") ? 0 : kDefaultWindow));
  if (family == Family::kMistral) {
    if (window > 0) windows.assign(static_cast<size_t>(layers), window);
    return windows;
  }
  SYNCOPATE_ASSIGN_OR_RETURN(const bool used, file.BoolOr("use_sliding_window", false));
  SYNCOPATE_ASSIGN_OR_RETURN(const std::optional<std::vector<bool>> named, ReadSlidingLayers(file, layers));
  if (!used || window == 0) return windows;
  if (family == Family::kQwen3Moe) {
    windows.assign(static_cast<size_t>(layers), window);
    return windows;
  }
  const bool whole_number = !file.Has("max_window_layers") || file.at("max_window_layers").is_number_unsigned();
  if (!whole_number) return file.Bad("max_window_layers", "must be a whole number");
  const int64_t from =
      file.Has("max_window_layers") ? file.at("max_window_layers").get<int64_t>() : kDefaultWindowLayers;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const bool slides = named.has_value() ? (*named)[static_cast<size_t>(layer)] : layer >= from;
    windows.push_back(slides ? window : 0);
  }
  return windows;
}

// The end-of-sequence ids; ids outside the vocabulary are refused, because the model could never draw them.
absl::StatusOr<std::vector<int32_t>> ReadEos(const Section& file, int64_t vocab_size) {
  std::vector<int32_t> ids;
  if (!file.Has("eos_token_id")) return ids;
  const Json& value = file.at("eos_token_id");
  for (const Json& id : value.is_array() ? value : Json::array({value})) {
    // Some files use -1 for "none".
    if (id.is_number_integer() && id.get<int64_t>() < 0) continue;
    if (!id.is_number_unsigned() || id.get<uint64_t>() > uint64_t{std::numeric_limits<int32_t>::max()}) {
      return file.Bad("eos_token_id", absl::StrCat("is ", file.Shown("eos_token_id"), "; token ids are whole numbers"));
    }
    if (id.get<int64_t>() >= vocab_size) {
      return file.Bad("eos_token_id", absl::StrCat("is ", file.Shown("eos_token_id"), ", outside the vocabulary of ",
                                                   vocab_size, " tokens"));
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

absl::StatusOr<Json> ParseFile(absl::string_view text, const std::string& source) {
  absl::StatusOr<Json> json = ParseStrictJson(text, kLimits);
  if (json.ok()) return json;
  return Error(absl::StatusCode::kInvalidArgument, "BAD_MODEL_CONFIG",
               absl::StrCat(source, ": ", json.status().message()));
}

}  // namespace

absl::StatusOr<ModelConfig> HfModel::WithContext(int64_t context) const {
  auto too_long = [&](const std::string& why) {
    return Error(absl::StatusCode::kInvalidArgument, "CONTEXT_TOO_LONG",
                 absl::StrCat(source, ": a context of ", context, " tokens is longer than ", why));
  };
  if (context > config.max_position_embeddings) {
    return too_long(absl::StrCat("max_position_embeddings ", config.max_position_embeddings));
  }
  ModelConfig limited = config;
  limited.max_position_embeddings = context;
  // If the window covers the context, sliding attention equals full attention, which every device supports.
  for (int64_t& window : limited.layer_windows) window = window >= context ? 0 : window;
  if (!limited.has_windows()) limited.layer_windows.clear();
  return limited;
}

absl::StatusOr<HfModel> ParseHfConfig(absl::string_view text, const std::string& source) {
  SYNCOPATE_ASSIGN_OR_RETURN(const Json json, ParseFile(text, source));
  const Section file(json, source);
  SYNCOPATE_ASSIGN_OR_RETURN(const Family family, ReadFamily(file));
  SYNCOPATE_RETURN_IF_ERROR(RefuseWhatIsNotBuilt(file));
  HfModel model;
  model.source = source;
  SYNCOPATE_RETURN_IF_ERROR(ReadShape(file, &model.config));
  SYNCOPATE_RETURN_IF_ERROR(ReadBiases(file, family, &model.config));
  if (family == Family::kQwen3Moe) SYNCOPATE_RETURN_IF_ERROR(ReadExperts(file, &model.config));
  SYNCOPATE_RETURN_IF_ERROR(ReadRope(file, &model));
  SYNCOPATE_ASSIGN_OR_RETURN(model.config.layer_windows, ReadWindows(file, family, model.config.num_hidden_layers));
  SYNCOPATE_ASSIGN_OR_RETURN(model.eos_token_ids, ReadEos(file, model.config.vocab_size));
  absl::Status valid = model.config.Validate();
  if (!valid.ok()) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_MODEL_CONFIG", absl::StrCat(source, ": ", valid.message()));
  }
  return model;
}

absl::StatusOr<HfModel> ReadHfConfig(const std::string& folder) {
  const std::string path = JoinPath(folder, kHfConfigFile);
  absl::StatusOr<std::string> text = ReadModelFile(path, kLimits.max_bytes);
  if (absl::IsNotFound(text.status())) {
    return ExplainNoModel(folder);
  }
  SYNCOPATE_RETURN_IF_ERROR(text.status());
  SYNCOPATE_ASSIGN_OR_RETURN(HfModel model, ParseHfConfig(*text, path));
  const std::string generation = JoinPath(folder, kGenerationConfigFile);
  absl::StatusOr<std::string> generation_text = ReadModelFile(generation, kLimits.max_bytes);
  if (absl::IsNotFound(generation_text.status())) return model;
  SYNCOPATE_RETURN_IF_ERROR(generation_text.status());
  SYNCOPATE_ASSIGN_OR_RETURN(const Json json, ParseFile(*generation_text, generation));
  SYNCOPATE_ASSIGN_OR_RETURN(std::vector<int32_t> ids, ReadEos(Section(json, generation), model.config.vocab_size));
  // generation_config.json lists more end tokens than config.json: chat models end their turns with another token.
  if (!ids.empty()) model.eos_token_ids = std::move(ids);
  return model;
}

}  // namespace syncopate::model
