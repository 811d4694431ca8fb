#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "text/tokenizer/tokenizer.h"

namespace syncopate::testing {

// What the reference says of one text, or of ids that no text gives (scripts/tokenizer_reference.py).
struct TokenizerCase {
  bool has_text = false;
  std::string text;
  std::vector<int32_t> ids;
  std::string decoded, skipped;  // the ids as text, with special tokens and without
};

// The cases of a file of JSON lines.
absl::StatusOr<std::vector<TokenizerCase>> ReadTokenizerCases(const std::string& path);

// In what ours differs from the reference, a line each; empty if in nothing: ids, text of the ids with special tokens
// and without, and the latter once more id by id, never with half a character in between.
//
// `byte_level` false leaves out the last for ids that no text gives (see TextStream).
std::vector<std::string> Differences(const text::tokenizer::Tokenizer& tokenizer, const TokenizerCase& expected,
                                     bool byte_level, text::tokenizer::PieceCache* cache);

}  // namespace syncopate::testing
