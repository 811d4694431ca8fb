#include "rollouter/engine/scheduled_request.h"

#include <algorithm>

namespace syncopate::rollouter {
namespace {

// Whether `tokens` end with `sequence`.
bool EndsWith(const std::vector<int32_t>& tokens, const std::vector<int32_t>& sequence) {
  return sequence.size() <= tokens.size() && std::equal(sequence.rbegin(), sequence.rend(), tokens.rbegin());
}

}  // namespace

SequenceOrder GetOrder(const ScheduledSequence& sequence) {
  const ScheduledRequest& state = *sequence.request;
  const int32_t rank = state.request.first ? 0 : state.overtaken ? 1 : 2;
  // Those that waited long enough go by arrival alone: a priority must not hold them up again.
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

std::optional<FinishReason> MakeFinish(const ScheduledSequence& sequence, int64_t max_context) {
  const SamplingParams& sampling = *sequence.request->request.sampling;
  const std::vector<int32_t>& drawn = sequence.drawn;
  const auto& stops = sampling.stop_token_ids;
  if (std::find(stops.begin(), stops.end(), drawn.back()) != stops.end()) return FinishReason::kStop;
  for (const std::vector<int32_t>& stop : sampling.stop_sequences) {
    if (EndsWith(drawn, stop)) return FinishReason::kStop;
  }
  if (static_cast<int64_t>(drawn.size()) >= sampling.max_new_tokens || KnownTokens(sequence) >= max_context) {
    return FinishReason::kLength;
  }
  return std::nullopt;
}

}  // namespace syncopate::rollouter
