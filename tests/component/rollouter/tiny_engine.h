#pragma once

#include <memory>

#include "model/model_config.h"
#include "rollouter/engine/engine_loop.h"
#include "tests/support/notification.h"
#include "tests/support/small_model.h"

namespace syncopate {

// A real engine with a small model whose context is so long that a test can observe the engine at work.
inline model::ModelConfig TinyModel() {
  model::ModelConfig config = testing::SmallModel();
  config.max_position_embeddings = 4000;
  config.learned_positions = false;
  return config;
}

inline std::unique_ptr<rollouter::EngineLoop> StartTinyEngine() {
  rollouter::EngineLoop::Options options;
  options.model = TinyModel();
  options.max_sequences = 16;
  return rollouter::EngineLoop::Start(options).value();
}

inline void InstallTinyWeights(rollouter::EngineLoop& engine, const PolicyVersion& version, uint64_t seed = 7) {
  model::InitialiseWeights(TinyModel(), engine.manifest(), seed, reinterpret_cast<float*>(engine.shadow()));
  ASSERT_TRUE(engine.Install(version, seed, kTestDeadline).ok());
}

}  // namespace syncopate
