#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

#include "model/model_config.h"
#include "trainer/actor/decoder_program.h"
#include "trainer/actor/fused_head.h"

namespace syncopate::bench {

// One GPU's training step as the trainer takes it (GRPO's clipped loss with an entropy bonus), with random weights and
// one random batch that are made on the device.
class TrainWorld {
 public:
  struct Options {
    model::ModelConfig model;
    std::vector<int64_t> lengths;
    trainer::Recompute recompute = trainer::Recompute::kSelective;
    bool float32_logits = false;
    std::string device = "cuda:0";
  };
  explicit TrainWorld(const Options& options);

  // Queue one step, or one pass for log-probs alone; nothing waits for the device.
  void Step();
  void LogProbs();

  int64_t tokens() const { return sequences_.rows(); }
  int64_t parameters() const { return parameters_.numel(); }
  // Floating-point operations of one step: 2 a parameter and token forward, twice that backward, and attention's.
  double step_flops() const;
  const at::Tensor& entropy() const { return entropy_; }  // [T], of the last step

 private:
  trainer::FusedHead::RowGradients Loss(int64_t begin, const trainer::FusedHead::Rows& rows);
  void Update();

  const Options options_;
  const Manifest manifest_;
  const at::Device device_;
  at::Tensor parameters_, first_moment_, second_moment_, gradients_;  // float32
  at::Tensor computed_;                                               // bfloat16: what forward and backward read
  const model::TransformerWeights weights_, gradient_views_;
  const model::Transformer transformer_;
  const trainer::DecoderProgram program_;
  const trainer::FusedHead head_;
  const model::PackedSequences sequences_;
  at::Tensor ids_, targets_, behaviour_, advantage_, entropy_;
  int64_t updates_ = 0;
};

}  // namespace syncopate::bench
