#pragma once

#include "model/model_config.h"

// Shapes of models for tests, each with a property that the others lack.
namespace syncopate::testing {

// The demo's model: reverse of length 4 over an alphabet of 8.
inline model::ModelConfig SmallModel() { return {.vocab_size = 11, .rope_scaling = {}, .learned_positions = true}; }

// Grouped queries, tied embeddings, no q/k norm: the other branches of the transformer.
inline model::ModelConfig GroupedQueryModel() {
  return {.vocab_size = 37,
          .hidden_size = 48,
          .intermediate_size = 64,
          .num_hidden_layers = 3,
          .num_attention_heads = 6,
          .num_key_value_heads = 2,
          .head_dim = 8,
          .max_position_embeddings = 40,
          .rope_scaling = {},
          .qk_norm = false,
          .tie_word_embeddings = true};
}

// Biases on all projections, and sizes that leave alignment gaps between joint matrices.
inline model::ModelConfig BiasedModel() {
  return {.vocab_size = 29,
          .hidden_size = 36,
          .intermediate_size = 37,
          .num_attention_heads = 6,
          .num_key_value_heads = 3,
          .head_dim = 6,
          .max_position_embeddings = 32,
          .rope_scaling = {},
          .qkv_bias = true,
          .output_bias = true,
          .mlp_bias = true};
}

// Layers 0 and 2 have routed experts, two for each token; layer 1 is dense.
inline model::ModelConfig RoutedModel() {
  return {.vocab_size = 31,
          .hidden_size = 32,
          .intermediate_size = 48,
          .num_hidden_layers = 3,
          .num_key_value_heads = 2,
          .head_dim = 8,
          .max_position_embeddings = 48,
          .rope_scaling = {},
          .num_experts = 6,
          .num_experts_per_tok = 2,
          .moe_intermediate_size = 16,
          .norm_topk_prob = true,
          .dense_layers = {1}};
}

// The model with adapters of all projections that can carry one, scaled by 3 / 2 with the default rank.
inline model::ModelConfig WithAdapters(model::ModelConfig config, int64_t rank = 4) {
  config.lora = {.rank = rank, .alpha = 6, .projections = model::LoraConfig::AllProjections()};
  return config;
}

// So wide that a layer costs more than the overhead of a kernel, and that its neighbours are really moved beside it.
// Tied embeddings.
inline model::ModelConfig WideModel() {
  return {.vocab_size = 1024,
          .hidden_size = 256,
          .intermediate_size = 768,
          .num_hidden_layers = 5,
          .num_attention_heads = 4,
          .num_key_value_heads = 2,
          .head_dim = 64,
          .max_position_embeddings = 64,
          .rope_scaling = {},
          .tie_word_embeddings = true};
}

// A small model with biases and an untied output head.
inline model::ModelConfig UntiedWideModel() {
  model::ModelConfig config = WideModel();
  config.tie_word_embeddings = false;
  config.qkv_bias = true;
  return config;
}

// Two or four ranks can share this model. Its untied head draws spread values: logits have a deviation of a few units.
inline model::ModelConfig ParallelModel() {
  return {.vocab_size = 1003,
          .hidden_size = 512,
          .intermediate_size = 1408,
          .num_hidden_layers = 3,
          .num_attention_heads = 8,
          .num_key_value_heads = 4,
          .head_dim = 64,
          .max_position_embeddings = 640,
          .rope_scaling = {},
          .qk_norm = false,
          .qkv_bias = true,
          .head_init_std = 0.15};
}

}  // namespace syncopate::testing
