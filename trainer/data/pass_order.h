#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/trajectory.h"

namespace syncopate::trainer {

// A bijection of [0, size) that a key chooses: a Feistel network of six rounds over the next power of four, walked
// until it falls into the range (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002). Pure, no
// table: the row at an index is computed without those before it. It scatters rows and is not meant to be secret.
class Permutation {
 public:
  // `size` is at least 1.
  Permutation(uint64_t key, int64_t size);

  // `index` is in [0, size).
  int64_t At(int64_t index) const;

 private:
  static constexpr int kRounds = 6;

  int64_t size_;
  int half_bits_;
  std::array<uint64_t, kRounds> keys_;
};

// The order in which a pass goes over the rows of several files. A pass has round(weight x rows) prompts of each file,
// in an order that is a bijection of (seed, pass). Whole multiples of a file come in every pass; of what is left over,
// passes take turns, so that all rows come equally often. Pure and immutable.
class PassOrder {
 public:
  struct File {
    int64_t rows = 0;
    double weight = 1;
  };
  struct Place {
    int32_t file = 0;
    int64_t row = 0;
    friend bool operator==(const Place&, const Place&) = default;
  };

  PassOrder(const std::vector<File>& files, uint64_t seed);

  int64_t prompts_per_pass() const { return total_; }  // perhaps none
  // `group.ordinal` is in [0, prompts_per_pass()), the pass is not negative.
  Place At(const GroupId& group) const;

 private:
  struct Share {
    int64_t rows = 0;   // of the file
    int64_t end = 0;    // of its share in a pass, before it is put in order
    int64_t count = 0;  // of its share
  };

  std::vector<Share> shares_;
  uint64_t seed_;
  int64_t total_ = 0;
};

}  // namespace syncopate::trainer
