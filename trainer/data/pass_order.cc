#include "trainer/data/pass_order.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/digest.h"
#include "base/status.h"

namespace syncopate::trainer {

Permutation::Permutation(uint64_t key, int64_t size) : size_(size) {
  SYNCOPATE_CHECK(size >= 1);
  const int bits = std::bit_width(static_cast<uint64_t>(size - 1));
  half_bits_ = std::max(1, (bits + 1) / 2);
  for (int round = 0; round < kRounds; ++round) keys_[round] = HashCombine(key, static_cast<uint64_t>(round));
}

int64_t Permutation::At(int64_t index) const {
  SYNCOPATE_CHECK(index >= 0 && index < size_);
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  auto value = static_cast<uint64_t>(index);
  do {
    uint64_t left = value >> half_bits_, right = value & mask;
    for (const uint64_t key : keys_) {
      const uint64_t mixed = left ^ (Mix64(right ^ key) & mask);
      left = right;
      right = mixed;
    }
    value = left << half_bits_ | right;
  } while (value >= static_cast<uint64_t>(size_));  // the cycle through `index` comes back into the range
  return static_cast<int64_t>(value);
}

PassOrder::PassOrder(const std::vector<File>& files, uint64_t seed) : seed_(seed) {
  for (const File& file : files) {
    Share share{.rows = file.rows};
    share.count = static_cast<int64_t>(std::llround(file.weight * static_cast<double>(file.rows)));
    total_ += share.count;
    share.end = total_;
    shares_.push_back(share);
  }
}

PassOrder::Place PassOrder::At(const GroupId& group) const {
  const auto pass = static_cast<uint64_t>(group.pass);
  const int64_t at = Permutation(HashCombine(seed_, pass), total_).At(group.ordinal);
  const auto share =
      std::upper_bound(shares_.begin(), shares_.end(), at, [](int64_t a, const Share& b) { return a < b.end; });
  const auto file = static_cast<int32_t>(share - shares_.begin());
  const int64_t place = at - (share->end - share->count);
  const int64_t whole = share->count - share->count % share->rows;
  if (place < whole) return {file, place % share->rows};
  // The rest of a file's share (less than a whole multiple) continues in pass p where it ended in pass p-1, in an order
  // that
  // all passes share.
  const int64_t left_over = share->count % share->rows;
  const auto turn = static_cast<int64_t>(
      (static_cast<unsigned __int128>(pass) * static_cast<uint64_t>(left_over) + static_cast<uint64_t>(place - whole)) %
      static_cast<uint64_t>(share->rows));
  const uint64_t key = HashCombine(HashCombine(seed_, static_cast<uint64_t>(file)), ~uint64_t{0});
  return {file, Permutation(key, share->rows).At(turn)};
}

}  // namespace syncopate::trainer
