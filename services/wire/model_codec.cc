#include "services/wire/model_codec.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "model/decoder_spec.h"

namespace syncopate::wire {
namespace {

using model::RopeScaling;

constexpr std::pair<RopeScaling::Type, const char*> kScalings[] = {
    {RopeScaling::Type::kLinear, "linear"}, {RopeScaling::Type::kLlama3, "llama3"}, {RopeScaling::Type::kYarn, "yarn"}};

void SetScaling(const RopeScaling& scaling, v1::ModelShape::RopeScaling* message) {
  for (const auto& [type, name] : kScalings) {
    if (type == scaling.type) message->set_type(name);
  }
  message->set_factor(scaling.factor);
  message->set_original_context(scaling.original_context);
  message->set_low_freq_factor(scaling.low_freq_factor);
  message->set_high_freq_factor(scaling.high_freq_factor);
  message->set_beta_fast(scaling.beta_fast);
  message->set_beta_slow(scaling.beta_slow);
  message->set_truncate(scaling.truncate);
  message->set_attention_factor(scaling.attention_factor);
}

absl::StatusOr<RopeScaling> GetScaling(const v1::ModelShape::RopeScaling& message) {
  RopeScaling scaling;
  for (const auto& [type, name] : kScalings) {
    if (message.type() == name) scaling.type = type;
  }
  // Computing with another scaling gives fluent nonsense, so an unknown kind is refused.
  if (scaling.type == RopeScaling::Type::kDefault) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_MESSAGE",
                 absl::StrCat("the rope scaling '", absl::CHexEscape(message.type().substr(0, 64)),
                              "' is not known; are both sides of one version?"));
  }
  scaling.factor = message.factor();
  scaling.original_context = message.original_context();
  scaling.low_freq_factor = message.low_freq_factor();
  scaling.high_freq_factor = message.high_freq_factor();
  scaling.beta_fast = message.beta_fast();
  scaling.beta_slow = message.beta_slow();
  scaling.truncate = message.truncate();
  scaling.attention_factor = message.attention_factor();
  return scaling;
}

// Checked before the shape, so that a newer model is refused by the name of what is new in it.
absl::Status CheckKinds(const v1::ModelShape& message) {
  for (const std::string& kind : message.layer_kinds()) {
    if (model::IsLayerKind(kind)) continue;
    return Error(absl::StatusCode::kFailedPrecondition, "UNKNOWN_LAYER_KIND",
                 absl::StrCat("the model has layers of kind '", absl::CHexEscape(kind.substr(0, 64)),
                              "', which this build does not know; use the same version of syncopate on both sides"));
  }
  return absl::OkStatus();
}

}  // namespace

v1::ModelShape ToProto(const model::ModelConfig& shape) {
  v1::ModelShape message;
  message.set_vocab_size(shape.vocab_size);
  message.set_hidden_size(shape.hidden_size);
  message.set_intermediate_size(shape.intermediate_size);
  message.set_num_hidden_layers(shape.num_hidden_layers);
  message.set_num_attention_heads(shape.num_attention_heads);
  message.set_num_key_value_heads(shape.num_key_value_heads);
  message.set_head_dim(shape.head_dim);
  message.set_max_position_embeddings(shape.max_position_embeddings);
  message.set_rope_theta(shape.rope_theta);
  // A missing field means "none" to a peer of any build.
  if (shape.rope_scaling.type != RopeScaling::Type::kDefault) {
    SetScaling(shape.rope_scaling, message.mutable_rope_scaling());
  }
  message.set_rms_norm_eps(shape.rms_norm_eps);
  message.set_qk_norm(shape.qk_norm);
  message.set_qkv_bias(shape.qkv_bias);
  message.set_output_bias(shape.output_bias);
  message.set_mlp_bias(shape.mlp_bias);
  message.set_learned_positions(shape.learned_positions);
  message.set_tie_word_embeddings(shape.tie_word_embeddings);
  message.mutable_layer_windows()->Assign(shape.layer_windows.begin(), shape.layer_windows.end());
  message.set_num_experts(shape.num_experts);
  message.set_num_experts_per_tok(shape.num_experts_per_tok);
  message.set_moe_intermediate_size(shape.moe_intermediate_size);
  message.set_norm_topk_prob(shape.norm_topk_prob);
  message.mutable_dense_layers()->Assign(shape.dense_layers.begin(), shape.dense_layers.end());
  if (shape.lora.enabled()) {
    v1::ModelShape::Lora* const lora = message.mutable_lora();
    lora->set_rank(shape.lora.rank);
    lora->set_alpha(shape.lora.alpha);
    lora->set_rank_stabilised(shape.lora.rank_stabilised);
    lora->mutable_projections()->Assign(shape.lora.projections.begin(), shape.lora.projections.end());
  }
  const model::DecoderSpec spec = model::MakeDecoderSpec(shape);
  for (const std::string& kind : model::LayerKinds(spec)) message.add_layer_kinds(kind);
  message.set_spec_digest(model::SpecDigest(spec));
  return message;
}

absl::StatusOr<model::ModelConfig> FromProto(const v1::ModelShape& message) {
  SYNCOPATE_RETURN_IF_ERROR(CheckKinds(message));
  model::ModelConfig shape;
  shape.vocab_size = message.vocab_size();
  shape.hidden_size = message.hidden_size();
  shape.intermediate_size = message.intermediate_size();
  shape.num_hidden_layers = message.num_hidden_layers();
  shape.num_attention_heads = message.num_attention_heads();
  shape.num_key_value_heads = message.num_key_value_heads();
  shape.head_dim = message.head_dim();
  shape.max_position_embeddings = message.max_position_embeddings();
  shape.rope_theta = message.rope_theta();
  if (message.has_rope_scaling()) {
    SYNCOPATE_ASSIGN_OR_RETURN(shape.rope_scaling, GetScaling(message.rope_scaling()));
  }
  shape.rms_norm_eps = message.rms_norm_eps();
  shape.qk_norm = message.qk_norm();
  shape.qkv_bias = message.qkv_bias();
  shape.output_bias = message.output_bias();
  shape.mlp_bias = message.mlp_bias();
  shape.learned_positions = message.learned_positions();
  shape.tie_word_embeddings = message.tie_word_embeddings();
  shape.layer_windows.assign(message.layer_windows().begin(), message.layer_windows().end());
  shape.num_experts = message.num_experts();
  shape.num_experts_per_tok = message.num_experts_per_tok();
  shape.moe_intermediate_size = message.moe_intermediate_size();
  shape.norm_topk_prob = message.norm_topk_prob();
  shape.dense_layers.assign(message.dense_layers().begin(), message.dense_layers().end());
  if (message.has_lora()) {
    shape.lora.rank = message.lora().rank();
    shape.lora.alpha = message.lora().alpha();
    shape.lora.rank_stabilised = message.lora().rank_stabilised();
    shape.lora.projections.assign(message.lora().projections().begin(), message.lora().projections().end());
  }
  // From here on sizes are multiplied and allocated.
  SYNCOPATE_RETURN_IF_ERROR(shape.Validate());
  const uint64_t digest = model::SpecDigest(model::MakeDecoderSpec(shape));
  // A build that sends no digest knows only full attention and one feed-forward block a layer.
  if (message.spec_digest() != 0 && digest != message.spec_digest()) {
    return Error(
        absl::StatusCode::kFailedPrecondition, "OTHER_MODEL",
        absl::StrFormat("the model's layers are not understood as they were meant: by the peer their digest is "
                        "%016x, here it is %016x; use the same version of syncopate on both sides",
                        message.spec_digest(), digest));
  }
  return shape;
}

}  // namespace syncopate::wire
