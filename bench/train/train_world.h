#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "model/model_config.h"
#include "trainer/actor/decoder_program.h"
#include "trainer/actor/fused_head.h"

namespace syncopate::bench {

// The computation of a training step alone: forward, GRPO's clipped loss with an entropy bonus and hand-written
// gradients, backward and update, with random weights and one random batch that are made on the device.
class TrainWorld {
 public:
  struct Options {
    model::ModelConfig model;
    std::vector<int64_t> lengths;
    trainer::Recompute recompute = trainer::Recompute::kSelective;
    bool float32_logits = false;
    at::Device device = at::kCPU;
    bool deterministic = false;  // see model::OpsFor()
  };
  explicit TrainWorld(const Options& options);

  // Step queues one step, LogProbs one pass for log-probabilities; neither waits for the device.
  void Step();
  void LogProbs();

  const at::Tensor& entropy() const { return entropy_; }  // [T], of the last step

 private:
  trainer::FusedHead::RowGradients Loss(int64_t begin, const trainer::FusedHead::Rows& rows);
  void Update();

  const Options options_;
  const Manifest manifest_;
  at::Tensor parameters_, first_moment_, second_moment_, gradients_;  // float32
  at::Tensor copy_;                                                   // bfloat16, on a GPU
  const model::TransformerWeights weights_, gradient_views_;
  const model::Transformer transformer_;
  const trainer::DecoderProgram program_;
  const trainer::FusedHead head_;
  const model::PackedSequences sequences_;
  at::Tensor ids_, targets_, behaviour_, advantage_, entropy_;
  int64_t updates_ = 0;
};

}  // namespace syncopate::bench
