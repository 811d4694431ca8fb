#include "rollouter/engine/scheduled_request.h"

#include <algorithm>

#include "absl/types/span.h"

namespace syncopate::rollouter {
namespace {

// Whether `tokens` end with `sequence`.
bool EndsWith(absl::Span<const int32_t> tokens, const std::vector<int32_t>& sequence) {
  return sequence.size() <= tokens.size() && std::equal(sequence.rbegin(), sequence.rend(), tokens.rbegin());
}

}  // namespace

SequenceOrder GetOrder(const ScheduledSequence& sequence) {
  const ScheduledRequest& state = *sequence.request;
  const int32_t rank = state.request.first ? 0 : state.overtaken ? 1 : 2;
  // Overtaken requests are ordered by arrival alone: a priority must not delay them again.
  if (rank == 1) return {rank, 0, 0, state.arrival, sequence.sample};
  return {rank, -static_cast<int64_t>(state.request.priority), state.request.deadline, state.arrival, sequence.sample};
}

int64_t KnownTokens(const ScheduledSequence& sequence) {
  return static_cast<int64_t>(sequence.request->request.prompt->size() + sequence.drawn.size());
}

std::vector<int32_t> GetTokens(const ScheduledSequence& sequence, int64_t begin, int64_t end) {
  const std::vector<int32_t>& prompt = *sequence.request->request.prompt;
  const int64_t length = static_cast<int64_t>(prompt.size());
  std::vector<int32_t> tokens;
  tokens.reserve(static_cast<size_t>(end - begin));
  if (begin < length) tokens.assign(prompt.begin() + begin, prompt.begin() + std::min(end, length));
  const auto drawn = sequence.drawn.begin();
  if (end > length) tokens.insert(tokens.end(), drawn + std::max<int64_t>(begin - length, 0), drawn + (end - length));
  return tokens;
}

int64_t MaxAnswerTokens(const ScheduledSequence& sequence, int64_t max_context) {
  const SchedulerRequest& request = sequence.request->request;
  int64_t most = sequence.turn_begin + request.sampling->max_new_tokens;
  if (request.has_turns()) most = std::min(most, request.max_total_tokens);
  return std::min(most, max_context - static_cast<int64_t>(request.prompt->size()));
}

std::optional<FinishReason> MakeFinish(const ScheduledSequence& sequence, int64_t max_context) {
  const SamplingParams& sampling = *sequence.request->request.sampling;
  // A stop sequence does not begin in an earlier turn.
  const absl::Span<const int32_t> turn = absl::MakeConstSpan(sequence.drawn).subspan(sequence.turn_begin);
  const auto& stops = sampling.stop_token_ids;
  if (std::find(stops.begin(), stops.end(), turn.back()) != stops.end()) return FinishReason::kStop;
  for (const std::vector<int32_t>& stop : sampling.stop_sequences) {
    if (EndsWith(turn, stop)) return FinishReason::kStop;
  }
  if (std::ssize(sequence.drawn) >= MaxAnswerTokens(sequence, max_context)) return FinishReason::kLength;
  return std::nullopt;
}

}  // namespace syncopate::rollouter
