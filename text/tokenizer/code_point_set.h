#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"

namespace syncopate::text::tokenizer {

// A set of code points: two levels of bits.
class CodePointSet {
 public:
  CodePointSet();

  // The characters of a general category ("Lu") or of a group of them ("L"); nullopt if Unicode has no such category.
  static std::optional<CodePointSet> OfCategory(absl::string_view name);
  // The characters that \s matches.
  static CodePointSet Spaces();

  void Add(char32_t first, char32_t last);
  void Add(const CodePointSet& other);
  void Negate();

  bool Contains(char32_t code_point) const {
    const uint64_t word = blocks_[index_[code_point >> 8]].words[(code_point & 0xFF) >> 6];
    return (word >> (code_point & 63) & 1) != 0;
  }

 private:
  struct Block {
    uint64_t words[4] = {};
  };
  Block& GetBlock(char32_t code_point);

  std::vector<uint16_t> index_;  // by code_point / 256; block 0 is empty and shared
  std::vector<Block> blocks_;
};

// The classes of characters that the hand-written scanners need.
class CodePointClasses {
 public:
  enum : uint8_t { kLetter = 1, kNumber = 2, kSpace = 4, kMark = 8 };

  // Made at the first call; never destroyed.
  static const CodePointClasses& Get();

  // A union of the constants above.
  uint8_t operator[](char32_t code_point) const {
    return blocks_[static_cast<size_t>(index_[code_point >> 8]) << 8 | (code_point & 0xFF)];
  }

 private:
  CodePointClasses();

  std::vector<uint16_t> index_;
  std::vector<uint8_t> blocks_;  // blocks of 256 entries; equal blocks are stored once
};

}  // namespace syncopate::text::tokenizer
