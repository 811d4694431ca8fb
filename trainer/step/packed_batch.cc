#include "trainer/step/packed_batch.h"

#include <algorithm>
#include <utility>

#include "base/status.h"

namespace syncopate::trainer {
namespace {

at::Tensor CopyOf(const std::vector<int64_t>& values, at::Device device) {
  return at::tensor(at::ArrayRef<int64_t>(values), at::kLong).to(device);
}
at::Tensor CopyOf(const std::vector<float>& values, at::Device device) {
  return at::tensor(at::ArrayRef<float>(values), at::kFloat).to(device);
}

}  // namespace

PackedBatch Pack(const std::vector<TrainingSequence>& sequences, at::Device device) {
  SYNCOPATE_CHECK(!sequences.empty());
  PackedBatch batch;
  std::vector<int64_t> ids, positions, predicts, targets;
  std::vector<float> behaviour, advantage;
  for (const TrainingSequence& sequence : sequences) {
    const std::vector<int32_t>& prompt = *sequence.prompt_ids;
    const std::vector<int32_t>& answer = sequence.trajectory->tokens;
    const int64_t begin = static_cast<int64_t>(ids.size());
    ids.insert(ids.end(), prompt.begin(), prompt.end());
    ids.insert(ids.end(), answer.begin(), answer.end() - 1);
    for (int64_t i = 0; i < sequence.input_length(); ++i) positions.push_back(i);
    for (size_t i = 0; i < answer.size(); ++i) {
      predicts.push_back(begin + static_cast<int64_t>(prompt.size() + i) - 1);
      targets.push_back(answer[i]);
      behaviour.push_back(sequence.trajectory->logprobs[i]);
      advantage.push_back(static_cast<float>(sequence.advantage));
    }
    batch.lengths.push_back(sequence.input_length());
  }
  batch.ids = CopyOf(ids, device);
  batch.positions = CopyOf(positions, device);
  batch.predicts = CopyOf(predicts, device);
  batch.targets = CopyOf(targets, device);
  batch.behaviour = CopyOf(behaviour, device);
  batch.advantage = CopyOf(advantage, device);
  return batch;
}

std::vector<std::vector<TrainingSequence>> SplitByTokens(const std::vector<TrainingSequence>& sequences,
                                                         int64_t max_tokens) {
  std::vector<std::vector<TrainingSequence>> runs;
  int64_t room = 0;
  for (const TrainingSequence& sequence : sequences) {
    if (runs.empty() || sequence.input_length() > room) {
      runs.emplace_back();
      room = max_tokens;
    }
    runs.back().push_back(sequence);
    room -= sequence.input_length();
  }
  return runs;
}

PackedAttention::PackedAttention(const std::vector<int64_t>& lengths, at::Device device)
    : sequences_(static_cast<int64_t>(lengths.size())), longest_(*std::max_element(lengths.begin(), lengths.end())) {
  std::vector<int64_t> cell_of_row, row_of_cell(static_cast<size_t>(sequences_ * longest_), 0);
  for (int64_t s = 0; s < sequences_; ++s) {
    for (int64_t i = 0; i < lengths[s]; ++i) {
      row_of_cell[s * longest_ + i] = static_cast<int64_t>(cell_of_row.size());
      cell_of_row.push_back(s * longest_ + i);
    }
  }
  cell_of_row_ = CopyOf(cell_of_row, device);
  row_of_cell_ = CopyOf(row_of_cell, device);
}

at::Tensor PackedAttention::ToRectangle(const at::Tensor& rows, int64_t heads) const {
  at::Tensor cells = rows.index_select(0, row_of_cell_).view({sequences_, longest_, rows.size(1), rows.size(2)});
  at::Tensor by_head = cells.transpose(1, 2);
  return rows.size(1) == heads ? by_head : by_head.repeat_interleave(heads / rows.size(1), 1);
}

at::Tensor PackedAttention::Attend(int64_t layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const int64_t heads = q.size(1), head_dim = q.size(2);
  // Padding is behind every sequence, so the causal mask already hides it from the rows that count.
  at::Tensor out = at::scaled_dot_product_attention(ToRectangle(q, heads), ToRectangle(k, heads), ToRectangle(v, heads),
                                                    {}, 0.0, /*is_causal=*/true);
  return out.transpose(1, 2).reshape({sequences_ * longest_, heads * head_dim}).index_select(0, cell_of_row_);
}

}  // namespace syncopate::trainer
