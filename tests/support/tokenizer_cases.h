#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "text/tokenizer/tokenizer.h"

namespace syncopate::testing {

// The results of the reference for one text, or for ids that no text gives (scripts/tokenizer_reference.py).
struct TokenizerCase {
  bool has_text = false;
  std::string text;
  std::vector<int32_t> ids;
  std::string decoded, skipped;  // the ids as text, with special tokens and without
};

// Reads the cases of a file of JSON lines.
absl::StatusOr<std::vector<TokenizerCase>> ReadTokenizerCases(const std::string& path);

// Returns how our tokenizer differs from the reference, one line for each difference; empty if it does not differ. It
// compares the ids, the text of the ids with special tokens and without, and the latter text again decoded id by id,
// never with an incomplete character in between.
//
// `byte_level` false leaves out the comparison id by id for ids that no text gives (see TextStream).
std::vector<std::string> Differences(const text::tokenizer::Tokenizer& tokenizer, const TokenizerCase& expected,
                                     bool byte_level, text::tokenizer::PieceCache* cache);

}  // namespace syncopate::testing
