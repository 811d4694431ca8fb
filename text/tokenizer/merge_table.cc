#include "text/tokenizer/merge_table.h"

#include <algorithm>
#include <queue>

namespace syncopate::text::tokenizer {
namespace {

constexpr uint32_t kNoRank = ~uint32_t{0};
// Up to this number of symbols, scanning all pairs again after each merge is faster than a queue.
constexpr size_t kFew = 40;

}  // namespace

void MergeTable::Reserve(size_t merges) {
  size_t size = 16;
  shift_ = 60;
  while (size < 2 * merges) {
    size *= 2;
    --shift_;
  }
  entries_.assign(size, {});
}

void MergeTable::Add(int32_t left, int32_t right, uint32_t rank, int32_t merged) {
  const uint64_t pair = PairFor(left, right);
  size_t slot = GetSlot(pair);
  while (entries_[slot].pair != kEmpty && entries_[slot].pair != pair) slot = (slot + 1) & (entries_.size() - 1);
  entries_[slot] = {pair, rank, merged};
}

const MergeTable::Entry* MergeTable::Find(int32_t left, int32_t right) const {
  const uint64_t pair = PairFor(left, right);
  for (size_t slot = GetSlot(pair);; slot = (slot + 1) & (entries_.size() - 1)) {
    if (entries_[slot].pair == pair) return &entries_[slot];
    if (entries_[slot].pair == kEmpty) return nullptr;
  }
}

void MergeTable::Merge(std::vector<int32_t>* symbols) const {
  if (symbols->size() < 2 || entries_.empty()) return;
  if (symbols->size() <= kFew) return MergeFew(symbols);
  MergeMany(symbols);
}

void MergeTable::MergeFew(std::vector<int32_t>* symbols) const {
  std::vector<int32_t>& s = *symbols;
  uint32_t rank[kFew];  // rank of the pair that begins at i
  int32_t merged[kFew];
  size_t n = s.size();
  const auto look_up = [&](size_t i) {
    const Entry* entry = i + 1 < n ? Find(s[i], s[i + 1]) : nullptr;
    rank[i] = entry != nullptr ? entry->rank : kNoRank;
    merged[i] = entry != nullptr ? entry->merged : 0;
  };
  for (size_t i = 0; i < n; ++i) look_up(i);
  while (n > 1) {
    const size_t best = static_cast<size_t>(std::min_element(rank, rank + n - 1) - rank);
    if (rank[best] == kNoRank) break;
    s[best] = merged[best];
    for (size_t i = best + 1; i + 1 < n; ++i) {
      s[i] = s[i + 1];
      rank[i] = rank[i + 1];
      merged[i] = merged[i + 1];
    }
    --n;
    if (best > 0) look_up(best - 1);
    look_up(best);
  }
  s.resize(n);
}

void MergeTable::MergeMany(std::vector<int32_t>* symbols) const {
  struct Candidate {
    uint32_t rank;
    int32_t at, merged, left, right;
    // The queue's top is the greatest candidate: the one of the lowest rank, and of these the leftmost.
    bool operator<(const Candidate& other) const { return rank != other.rank ? rank > other.rank : at > other.at; }
  };
  constexpr int32_t kGone = -1;
  std::vector<int32_t>& s = *symbols;
  const int32_t n = static_cast<int32_t>(s.size());
  std::vector<int32_t> before(s.size()), after(s.size());
  for (int32_t i = 0; i < n; ++i) {
    before[static_cast<size_t>(i)] = i - 1;
    after[static_cast<size_t>(i)] = i + 1 < n ? i + 1 : -1;
  }
  std::vector<Candidate> first;
  first.reserve(s.size());
  std::priority_queue<Candidate> queue(std::less<Candidate>(), std::move(first));
  const auto offer = [&](int32_t at) {
    if (at < 0 || after[static_cast<size_t>(at)] < 0) return;
    const int32_t left = s[static_cast<size_t>(at)];
    const int32_t right = s[static_cast<size_t>(after[static_cast<size_t>(at)])];
    if (const Entry* entry = Find(left, right)) queue.push({entry->rank, at, entry->merged, left, right});
  };
  for (int32_t i = 0; i < n; ++i) offer(i);
  while (!queue.empty()) {
    const Candidate c = queue.top();
    queue.pop();
    const size_t at = static_cast<size_t>(c.at);
    const int32_t right = after[at];
    // A candidate is stale if one of its parts has been merged since.
    if (s[at] != c.left || right < 0 || s[static_cast<size_t>(right)] != c.right) continue;
    s[at] = c.merged;
    s[static_cast<size_t>(right)] = kGone;
    after[at] = after[static_cast<size_t>(right)];
    if (after[at] >= 0) before[static_cast<size_t>(after[at])] = c.at;
    offer(before[at]);
    offer(c.at);
  }
  s.erase(std::remove(s.begin(), s.end(), kGone), s.end());
}

}  // namespace syncopate::text::tokenizer
