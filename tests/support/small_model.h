#pragma once

#include "model/model_config.h"

namespace syncopate::testing {

// The demo's model: reverse of length 4 over an alphabet of 8.
inline model::ModelConfig SmallModel() {
  model::ModelConfig config;
  config.vocab_size = 11;
  config.learned_positions = true;
  return config;
}

// Grouped queries, tied embeddings, no q/k norm: the other branches of the transformer.
inline model::ModelConfig GroupedQueryModel() {
  model::ModelConfig config;
  config.vocab_size = 37;
  config.hidden_size = 48;
  config.intermediate_size = 64;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 6;
  config.num_key_value_heads = 2;
  config.head_dim = 8;
  config.max_position_embeddings = 40;
  config.qk_norm = false;
  config.tie_word_embeddings = true;
  return config;
}

// Biases everywhere, and sizes that leave gaps of alignment between joint matrices.
inline model::ModelConfig BiasedModel() {
  model::ModelConfig config;
  config.vocab_size = 29;
  config.hidden_size = 36;
  config.intermediate_size = 37;
  config.num_attention_heads = 6;
  config.num_key_value_heads = 3;
  config.head_dim = 6;
  config.max_position_embeddings = 32;
  config.qkv_bias = config.output_bias = config.mlp_bias = true;
  return config;
}

}  // namespace syncopate::testing
