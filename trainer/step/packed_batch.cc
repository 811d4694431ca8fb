#include "trainer/step/packed_batch.h"

#include <utility>

#include "base/status.h"
#include "trainer/loss/outcomes.h"

namespace syncopate::trainer {
namespace {

template <typename Number>
at::Tensor Queue(const std::vector<Number>& values, at::ScalarType type, at::Device device) {
  return model::QueueCopy(at::tensor(at::ArrayRef<Number>(values), type), device);
}

template <typename Number>
void Append(const std::vector<Number>& values, std::vector<Number>* to) {
  to->insert(to->end(), values.begin(), values.end());
}

}  // namespace

PackedBatch Pack(const std::vector<TrainingSequence>& sequences, at::Device device) {
  SYNCOPATE_CHECK(!sequences.empty());
  // Sequences lie end to end without padding: what is computed is what there is.
  std::vector<int64_t> lengths, ids, predicts, targets, ages, answers, answer_tokens;
  std::vector<float> behaviour, advantage, reference, group_tokens;
  for (const TrainingSequence& sequence : sequences) {
    const std::vector<int32_t>& prompt = *sequence.prompt_ids;
    const Trajectory& trajectory = *sequence.trajectory;
    const std::vector<int32_t>& answer = trajectory.tokens;
    const int64_t begin = static_cast<int64_t>(ids.size());
    ids.insert(ids.end(), prompt.begin(), prompt.end());
    // The last token predicts nothing that is trained, so it is no input.
    ids.insert(ids.end(), answer.begin(), answer.end() - 1);
    const bool is_supervised = sequence.is_supervised();
    int64_t written = 0;
    // Given tokens are input alone; the loss trains no prediction of them.
    ForWrittenTokens(trajectory, [&](int32_t place) {
      // The row before a token predicts it.
      predicts.push_back(begin + static_cast<int64_t>(prompt.size()) + place - 1);
      targets.push_back(answer[static_cast<size_t>(place)]);
      advantage.push_back(static_cast<float>(sequence.advantage.at(written++)));
      // The tokens of a supervised answer were not sampled; its loss does not read this value.
      behaviour.push_back(is_supervised ? 0.0f : trajectory.logprobs[static_cast<size_t>(place)]);
    });
    if (is_supervised) {
      ages.insert(ages.end(), static_cast<size_t>(written), 0);
    } else {
      Append(loss::GetAges(trajectory, sequence.step), &ages);
    }
    if (sequence.reference != nullptr) Append(*sequence.reference, &reference);
    answers.insert(answers.end(), static_cast<size_t>(written), static_cast<int64_t>(lengths.size()));
    answer_tokens.push_back(written);
    group_tokens.push_back(static_cast<float>(sequence.group_tokens));
    lengths.push_back(sequence.input_length());
  }
  SYNCOPATE_CHECK(reference.empty() || reference.size() == targets.size());  // all sequences know it, or none does
  PackedBatch batch{model::PackedSequences(std::move(lengths), device),
                    Queue(ids, at::kLong, device),
                    Queue(predicts, at::kLong, device),
                    Queue(targets, at::kLong, device),
                    {}};
  batch.tokens = {.current = {},
                  .behaviour = Queue(behaviour, at::kFloat, device),
                  .advantage = Queue(advantage, at::kFloat, device),
                  .reference = reference.empty() ? at::Tensor() : Queue(reference, at::kFloat, device),
                  .age = Queue(ages, at::kLong, device),
                  .answer = Queue(answers, at::kLong, device),
                  .answer_tokens = Queue(answer_tokens, at::kLong, device),
                  .group_tokens = Queue(group_tokens, at::kFloat, device)};
  return batch;
}

}  // namespace syncopate::trainer
