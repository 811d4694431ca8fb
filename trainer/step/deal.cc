#include "trainer/step/deal.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace syncopate::trainer {
namespace {

struct MicroBatch {
  double cost = 0;
  int64_t tokens = 0;
  std::vector<size_t> sequences;
};

// Nothing if one of the sequences, which come costliest first, finds no room.
std::optional<std::vector<MicroBatch>> Fill(size_t count, const std::vector<size_t>& sequences,
                                            const std::vector<int64_t>& lengths, int64_t max_tokens,
                                            const SequenceCost& cost) {
  std::vector<MicroBatch> filled(count);
  std::set<std::pair<double, size_t>> by_cost;
  for (size_t i = 0; i < count; ++i) by_cost.insert({0, i});
  for (size_t index : sequences) {
    const auto place = std::find_if(by_cost.begin(), by_cost.end(), [&](const auto& entry) {
      return filled[entry.second].tokens + lengths[index] <= max_tokens;
    });
    if (place == by_cost.end()) return std::nullopt;
    const size_t chosen = place->second;
    by_cost.erase(place);
    filled[chosen].cost += cost.Estimate(lengths[index]);
    filled[chosen].tokens += lengths[index];
    filled[chosen].sequences.push_back(index);
    by_cost.insert({filled[chosen].cost, chosen});
  }
  for (MicroBatch& one : filled) std::sort(one.sequences.begin(), one.sequences.end());
  return filled;
}

// Neighbours by cost go to different ranks at once, the costliest to the rank that has had the least.
Deal Spread(std::vector<MicroBatch> filled, size_t ranks) {
  std::stable_sort(filled.begin(), filled.end(),
                   [](const MicroBatch& a, const MicroBatch& b) { return a.cost > b.cost; });
  Deal deal(ranks);
  std::vector<double> had(ranks);
  std::vector<size_t> order(ranks);
  std::iota(order.begin(), order.end(), size_t{0});
  for (size_t i = 0; i < filled.size(); ++i) {
    if (i % ranks == 0) {
      std::stable_sort(order.begin(), order.end(), [&had](size_t a, size_t b) { return had[a] < had[b]; });
    }
    const size_t rank = order[i % ranks];
    deal[rank].push_back(std::move(filled[i].sequences));
    had[rank] += filled[i].cost;
  }
  return deal;
}

}  // namespace

SequenceCost ComputeCost(const model::ModelConfig& config) {
  const double layers = static_cast<double>(config.num_hidden_layers);
  double products = 0;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    products += static_cast<double>(config.hidden_size) *
                static_cast<double>(2 * config.query_size() + 2 * config.key_value_size() +
                                    3 * config.feed_forward_size(layer));
  }
  const double head = static_cast<double>(config.vocab_size * config.hidden_size);
  // Scores and their sums: two products, of which causal attention needs half.
  return {2 * (products + head), 2 * layers * static_cast<double>(config.query_size())};
}

absl::StatusOr<Deal> DealByCost(const std::vector<int64_t>& lengths, int ranks, int64_t max_tokens,
                                const SequenceCost& cost) {
  SYNCOPATE_CHECK(ranks >= 1 && max_tokens >= 1);
  int64_t total = 0;
  for (int64_t length : lengths) {
    total += length;
    if (length <= max_tokens) continue;
    return Error(
        absl::StatusCode::kInvalidArgument, "SEQUENCE_TOO_LONG",
        absl::StrCat("a prompt and its answer are ", length,
                     " tokens, more than a micro-batch may have; raise train.micro_batch_tokens ", max_tokens));
  }
  std::vector<size_t> costliest_first(lengths.size());
  std::iota(costliest_first.begin(), costliest_first.end(), size_t{0});
  std::stable_sort(costliest_first.begin(), costliest_first.end(),
                   [&lengths](size_t a, size_t b) { return lengths[a] > lengths[b]; });
  const auto each = static_cast<size_t>(ranks);
  // One a sequence is always enough.
  for (size_t count = std::max<size_t>(1, static_cast<size_t>(total / max_tokens) / each);; ++count) {
    auto filled = Fill(count * each, costliest_first, lengths, max_tokens, cost);
    if (filled.has_value()) return Spread(*std::move(filled), each);
  }
}

}  // namespace syncopate::trainer
