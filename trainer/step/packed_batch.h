#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "base/trajectory.h"
#include "model/transformer.h"

namespace syncopate::trainer {

// One sequence to train on. The record it points into must outlive it.
struct TrainingSequence {
  const std::vector<int32_t>* prompt_ids = nullptr;
  const Trajectory* trajectory = nullptr;
  double advantage = 0;

  // Tokens that go into the model: all but the last, which only is a target.
  int64_t input_length() const { return static_cast<int64_t>(prompt_ids->size() + trajectory->tokens.size()) - 1; }
};

// Sequences laid end to end without padding: T input tokens in all, A answer tokens that are trained on. All tensors on
// one device.
struct PackedBatch {
  at::Tensor ids;                // [T] int64
  at::Tensor positions;          // [T] int64, from 0 in each sequence
  at::Tensor predicts;           // [A] int64: rows of T whose logits predict an answer token
  at::Tensor targets;            // [A] int64: those answer tokens
  at::Tensor behaviour;          // [A] float32
  at::Tensor advantage;          // [A] float32
  std::vector<int64_t> lengths;  // input length of each sequence; sums to T

  int64_t num_answer_tokens() const { return targets.size(0); }
};

// Packs `sequences` in their order. Not empty; every answer has at least one token.
PackedBatch Pack(const std::vector<TrainingSequence>& sequences, at::Device device = at::kCPU);

// Cuts [0, sequences.size()) into runs of at most `max_tokens` input tokens each (a longer sequence is a run of its
// own), in order: the same batch is always cut the same way.
std::vector<std::vector<TrainingSequence>> SplitByTokens(const std::vector<TrainingSequence>& sequences,
                                                         int64_t max_tokens);

// Causal attention inside each sequence of a packed batch. Rows go to a [sequences, longest] rectangle and back, so
// linear layers never see padding.
class PackedAttention final : public model::Attention {
 public:
  explicit PackedAttention(const std::vector<int64_t>& lengths, at::Device device = at::kCPU);
  at::Tensor Attend(int64_t layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) override;

 private:
  at::Tensor ToRectangle(const at::Tensor& rows, int64_t heads) const;

  int64_t sequences_, longest_;
  at::Tensor cell_of_row_;  // [T]: index into the flattened rectangle
  at::Tensor row_of_cell_;  // [sequences * longest]: index into the rows; 0 for padding
};

}  // namespace syncopate::trainer
