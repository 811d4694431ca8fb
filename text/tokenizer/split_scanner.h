#pragma once

#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "text/tokenizer/split_pattern.h"

namespace syncopate::text::tokenizer {

// A scanner for the family of split patterns that Qwen, Llama 3 and GPT-2 use, in one pass without backtracking: three
// to four times as fast as SplitPattern, with the same result. Immutable and thread-safe.
class SplitScanner {
 public:
  // nullopt if the pattern is not one of the family; use SplitPattern then.
  static std::optional<SplitScanner> Recognise(absl::string_view pattern);

  // Splits as SplitPattern::Split does, in one step for each character.
  void Split(absl::string_view text, Piece piece, std::vector<Piece>* out) const;

 private:
  // The differences between the patterns of the family.
  struct Rules {
    bool any_case = false;           // contractions: 's as well as 'S
    bool any_prefix = false;         // a word may begin with anything but CR, LF, letter, digit; else with a space only
    bool marks_are_letters = false;  // [\p{L}\p{M}]
    int max_digits = 0;              // most digits of one piece; 0: any number
    bool digits_take_space = false;  // " ?\p{N}+"
    bool newlines_apart = false;     // "[\r\n]*" after punctuation, and "\s*[\r\n]+" before other blanks
  };
  class Scan;

  explicit SplitScanner(const Rules& rules) : rules_(rules) {}

  Rules rules_;
};

}  // namespace syncopate::text::tokenizer
