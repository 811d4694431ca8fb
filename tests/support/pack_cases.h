#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "base/manifest.h"
#include "synchronizer/plan/pack.h"

namespace syncopate::synchronizer {

// Operations that pack a shard into a send arena. They are harsher than those of any plan: rows of odd lengths, gaps
// everywhere, every alignment that elements allow.
struct PackCase {
  std::vector<PackOp> ops;         // op i packs tensor i
  std::vector<ByteRange> buckets;  // disjoint, ordered by begin; every operation lies in one of them
  std::vector<char> shard;         // the elements are finite numbers
  int64_t send_bytes = 0;
};

struct PackCaseOptions {
  bool bf16_only = false;      // true: buckets and rows may start at every second byte
  int64_t max_elements = 500;  // the largest number of elements in a row of an operation
  int ops = 12;
};

inline PackCase RandomPackCase(uint64_t seed, const PackCaseOptions& options) {
  std::mt19937_64 random(seed);
  auto below = [&random](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  const int64_t unit = options.bf16_only ? 2 : 4;
  PackCase made;
  int64_t source = 0;
  int64_t send = 0;
  for (int i = 0; i < options.ops; ++i) {
    PackOp op;
    op.tensor = i;
    op.from = options.bf16_only || below(3) == 0 ? DType::kBFloat16 : DType::kFloat32;
    op.to = op.from == DType::kFloat32 && below(4) == 0 ? DType::kFloat32 : DType::kBFloat16;
    op.rows = below(3) == 0 ? 1 + below(40) : 1;
    op.row_elements = 1 + below(options.max_elements);
    if (below(2) == 0) op.row_elements = (op.row_elements + 7) / 8 * 8;
    const int64_t from_row = op.row_elements * DTypeBytes(op.from);
    const int64_t to_row = op.row_elements * DTypeBytes(op.to);
    source = (source + 3) / 4 * 4 + unit * below(2);
    if (below(2) == 0) source = (source + 255) / 256 * 256;
    op.source_offset = source;
    op.source_stride = from_row + (below(2) == 0 ? 0 : 16 * below(4) + 4 * below(2));
    if (below(2) == 0) send = (send + 255) / 256 * 256;
    send = (send + unit - 1) / unit * unit;
    if (op.to == DType::kFloat32) send = (send + 3) / 4 * 4;
    op.send_offset = send;
    op.send_stride = to_row + (below(3) == 0 ? 4 * below(9) : 0);
    source += (op.rows - 1) * op.source_stride + from_row;
    send += (op.rows - 1) * op.send_stride + to_row;
    made.ops.push_back(op);
  }
  made.send_bytes = (send + 255) / 256 * 256;
  for (int64_t begin = 0; begin < send;) {
    const int64_t size = below(2) == 0 ? 4096 : unit * (1 + below(3000));
    made.buckets.push_back({begin, std::min(begin + size, send)});
    begin += size;
  }
  // Draws bf16 numbers between 2^-8 and 2^8, which are finite as fp32 too, whatever the alignment.
  made.shard.resize(static_cast<size_t>((source + 255) / 256 * 256));
  for (size_t i = 0; i + 1 < made.shard.size(); i += 2) {
    const uint16_t bits = static_cast<uint16_t>((random() & 0x807f) | (119 + random() % 16) << 7);
    std::memcpy(&made.shard[i], &bits, 2);
  }
  return made;
}

// The contents that the send arena must have, and which of its bytes some operation writes.
struct PackedCase {
  std::vector<char> arena;
  std::vector<bool> written;
};

inline PackedCase PackExpected(const PackCase& made) {
  PackedCase packed;
  packed.arena.assign(static_cast<size_t>(made.send_bytes), 0);
  std::vector<char> ones(packed.arena.size(), static_cast<char>(0xff));
  PackOnHost(made.ops, made.shard.data(), packed.arena.data());
  PackOnHost(made.ops, made.shard.data(), ones.data());
  for (size_t i = 0; i < ones.size(); ++i) packed.written.push_back(packed.arena[i] == ones[i]);
  return packed;
}

// An arena as staging finds it, with garbage wherever an operation must write.
inline std::vector<char> PoisonedArena(const PackedCase& packed) {
  std::vector<char> arena(packed.arena.size(), 0);
  for (size_t i = 0; i < arena.size(); ++i) {
    if (packed.written[i]) arena[i] = static_cast<char>(0xcd);
  }
  return arena;
}

}  // namespace syncopate::synchronizer
