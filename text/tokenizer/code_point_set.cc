#include "text/tokenizer/code_point_set.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "text/tokenizer/unicode_tables.h"

namespace syncopate::text::tokenizer {
namespace {

// A look-up has two steps: the block of 256 code points, and the bit in the block. Most blocks of a set are empty and
// share one block, so a set of all letters takes some kilobytes, and a look-up has no branch.
constexpr size_t kBlocks = 0x1100;  // of 256 code points
constexpr size_t kBlockSize = 256;

}  // namespace

CodePointSet::CodePointSet() : index_(kBlocks, 0), blocks_(1) {}

std::optional<CodePointSet> CodePointSet::OfCategory(absl::string_view name) {
  CodePointSet set;
  bool found = false;
  for (const CategoryRange& range : kCategoryRanges) {
    if (name.empty() || !absl::StartsWith(kCategoryNames[range.category], name)) continue;
    set.Add(range.first, range.last);
    found = true;
  }
  if (!found) return std::nullopt;
  return set;
}

CodePointSet CodePointSet::Spaces() {
  CodePointSet set;
  for (const CodePointRange& range : kSpaceRanges) set.Add(range.first, range.last);
  return set;
}

void CodePointSet::Add(char32_t first, char32_t last) {
  for (char32_t c = first; c <= last; ++c) GetBlock(c).words[(c & 0xFF) >> 6] |= uint64_t{1} << (c & 63);
}

void CodePointSet::Add(const CodePointSet& other) {
  for (size_t i = 0; i < kBlocks; ++i) {
    if (other.index_[i] == 0) continue;
    Block& mine = GetBlock(static_cast<char32_t>(i << 8));
    for (size_t word = 0; word < 4; ++word) mine.words[word] |= other.blocks_[other.index_[i]].words[word];
  }
}

void CodePointSet::Negate() {
  for (size_t i = 0; i < kBlocks; ++i) {
    // Each entry that used the shared empty block gets its own full block: a negated set is larger, but still small.
    for (uint64_t& word : GetBlock(static_cast<char32_t>(i << 8)).words) word = ~word;
  }
}

CodePointSet::Block& CodePointSet::GetBlock(char32_t code_point) {
  uint16_t& index = index_[code_point >> 8];
  if (index == 0) {
    index = static_cast<uint16_t>(blocks_.size());
    blocks_.emplace_back();
  }
  return blocks_[index];
}

CodePointClasses::CodePointClasses() : index_(kBlocks) {
  std::vector<uint8_t> flat(kBlocks * kBlockSize);
  for (const CodePointRange& range : kSpaceRanges) {
    for (char32_t c = range.first; c <= range.last; ++c) flat[c] |= kSpace;
  }
  for (const CategoryRange& range : kCategoryRanges) {
    const char group = kCategoryNames[range.category][0];
    const uint8_t flag = group == 'L' ? kLetter : group == 'N' ? kNumber : group == 'M' ? kMark : 0;
    for (char32_t c = range.first; c <= range.last; ++c) flat[c] |= flag;
  }
  for (size_t i = 0; i < kBlocks; ++i) {
    const auto block = flat.begin() + static_cast<int64_t>(i * kBlockSize);
    size_t same = 0;
    // Equal blocks are stored once: large scripts consist of letters only.
    while (same * kBlockSize < blocks_.size() &&
           !std::equal(block, block + kBlockSize, blocks_.begin() + static_cast<int64_t>(same * kBlockSize))) {
      ++same;
    }
    if (same * kBlockSize == blocks_.size()) blocks_.insert(blocks_.end(), block, block + kBlockSize);
    index_[i] = static_cast<uint16_t>(same);
  }
}

const CodePointClasses& CodePointClasses::Get() {
  static const CodePointClasses* const classes = new CodePointClasses;
  return *classes;
}

}  // namespace syncopate::text::tokenizer
