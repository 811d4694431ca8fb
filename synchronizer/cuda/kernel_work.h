#pragma once

#include <cstdint>

// The work of the kernels that stage and check weights: plain data, shared by host and device, made by stage_program.h.
// Items are independent of each other, so thread blocks take them in any order.
namespace syncopate::synchronizer {

inline constexpr int64_t kVectorBytes = 16;            // loaded and stored by a thread at once
inline constexpr int64_t kPackItemBytes = 64 << 10;    // bytes of the send arena; the work of one block at a time
inline constexpr int64_t kCheckItemBytes = 128 << 10;  // bytes of an arena

// The format of numbers that are checked for NaN and infinity.
enum class NumberKind : uint8_t { kNone, kFloat32, kBFloat16 };

// Fills `vectors` consecutive vectors of the send arena from one tensor's shard, and digests and checks them. Elements
// are read row by row; the first one is in column `first_column` of the row at `source`.
struct PackItem {
  int64_t send = 0;           // byte of the arena, a multiple of kVectorBytes
  int64_t source = 0;         // bytes from the tensor's base
  int64_t source_stride = 0;  // bytes from row to row
  int64_t first_word = 0;     // index in the bucket of the word at `send`
  uint32_t first_column = 0;  // elements
  uint32_t row_elements = 0;  // 0: no row ends within these vectors
  int32_t vectors = 0;
  int32_t tensor = 0;
  int32_t digest = -1;                     // index of the sum; -1: none, another pass digests these bytes
  NumberKind from = NumberKind::kFloat32;  // kFloat32 or kBFloat16
  NumberKind to = NumberKind::kFloat32;    // equal to `from`, or bf16 from fp32
};

// Fills single elements of any alignment, and checks them. Element e of the operation is in row e / row_elements on
// both sides.
struct ElementItem {
  int64_t send = 0;
  int64_t send_stride = 0;
  int64_t source = 0;
  int64_t source_stride = 0;
  int64_t row_elements = 1;
  int64_t first = 0;  // index of the first element in the operation
  int32_t count = 0;
  int32_t tensor = 0;
  NumberKind from = NumberKind::kFloat32;
  NumberKind to = NumberKind::kFloat32;
};

// Digests `bytes` bytes of an arena, or checks them for numbers that are not finite.
struct CheckItem {
  enum class How : uint8_t {
    kAligned,  // `begin` and the bucket start on a word: digest and check in one pass
    kShifted,  // digest only, for a bucket that does not start on a word
    kNumbers,  // check only
  };
  int64_t begin = 0;       // byte of the arena
  int64_t first_word = 0;  // index in the bucket of the word at `begin`
  int32_t bytes = 0;       // a multiple of 8, except in the item that ends a bucket or a run of numbers
  int32_t digest = -1;     // index of the sum
  How how = How::kAligned;
  NumberKind numbers = NumberKind::kNone;
};

}  // namespace syncopate::synchronizer
