#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "base/trajectory.h"
#include "model/packed_sequences.h"
#include "trainer/loss/advantages.h"
#include "trainer/loss/token_batch.h"

namespace syncopate::trainer {

// One sequence to train on. The record it points into must outlive it.
struct TrainingSequence {
  const std::vector<int32_t>* prompt_ids = nullptr;
  const Trajectory* trajectory = nullptr;
  loss::SampleAdvantage advantage = {};
  double group_tokens = 0;  // trained on, of its group
  int64_t step = 0;         // the trainer's, which ages are counted to
  // Log-probs of the answer's written tokens under the reference policy; null: not known.
  const std::vector<float>* reference = nullptr;

  // An answer to learn as it is, not one that a policy has drawn: it has no log-probs.
  bool is_supervised() const { return trajectory->logprobs.empty(); }
  // Tokens that go into the model: all but the last, which only is a target.
  int64_t input_length() const { return static_cast<int64_t>(prompt_ids->size() + trajectory->tokens.size()) - 1; }
};

// Sequences laid end to end without padding: T input tokens in all, A answer tokens that are trained on: those that the
// policy wrote. All tensors on one device.
struct PackedBatch {
  model::PackedSequences sequences;  // T rows
  at::Tensor ids;                    // [T] int64
  at::Tensor predicts;               // [A] int64: rows of T whose logits predict an answer token
  at::Tensor targets;                // [A] int64: those answer tokens
  // What the loss looks at, float32, but for what depends on the weights: current, proximal, entropy, and reference if
  // the sequences do not know it.
  loss::TokenBatch tokens;
};

// Packs `sequences` in their order. Not empty; every answer has at least one token. Does not wait for the device.
PackedBatch Pack(const std::vector<TrainingSequence>& sequences, at::Device device = at::kCPU);

}  // namespace syncopate::trainer
