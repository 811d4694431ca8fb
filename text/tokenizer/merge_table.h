#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace syncopate::text::tokenizer {

// The merges of a byte-pair encoding: which two tokens make which third, and in which order. Once filled, immutable and
// thread-safe.
class MergeTable {
 public:
  // Removes all merges, and makes room for `merges`.
  void Reserve(size_t merges);
  // If a pair is added twice, the later rank counts, as in the reference.
  void Add(int32_t left, int32_t right, uint32_t rank, int32_t merged);

  // Merges pairs of neighbours until no pair has a merge: always the pair of the lowest rank, the leftmost of equals.
  // O(n log n) in the number of symbols.
  void Merge(std::vector<int32_t>* symbols) const;

 private:
  struct Entry {
    uint64_t pair = kEmpty;
    uint32_t rank = 0;
    int32_t merged = 0;
  };
  static constexpr uint64_t kEmpty = ~uint64_t{0};

  static uint64_t PairFor(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  size_t GetSlot(uint64_t pair) const { return static_cast<size_t>((pair * 0x9E3779B97F4A7C15ull) >> shift_); }
  const Entry* Find(int32_t left, int32_t right) const;
  void MergeFew(std::vector<int32_t>* symbols) const;
  void MergeMany(std::vector<int32_t>* symbols) const;

  // Open addressing with a power of two of entries, at most half full: a look-up touches one cache line in most cases.
  std::vector<Entry> entries_;
  int shift_ = 64;
};

}  // namespace syncopate::text::tokenizer
