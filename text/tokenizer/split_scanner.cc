#include "text/tokenizer/split_scanner.h"

#include "base/utf8.h"

namespace syncopate::text::tokenizer {

// One scan of a piece. Alternatives are tried in the order of the patterns: contraction, word, digits, the rest,
// blanks.
class SplitScanner::Scan {
 public:
  Scan(const Rules& rules, absl::string_view text)
      : rules_(rules),
        classes_(CodePointClasses::Get()),
        text_(text),
        word_(CodePointClasses::kLetter | (rules.marks_are_letters ? CodePointClasses::kMark : 0)) {}

  // The end of the piece that begins at `at`.
  size_t EndOfPiece(size_t at) const {
    const Character c = At(at);
    if (c.value == '\'') {
      if (const size_t end = EndOfContraction(at); end != 0) return end;
    }
    const Character next = At(at + c.bytes);
    const auto is_word = [this](const Character& x) { return (x.classes & word_) != 0; };
    const auto is_digit = [](const Character& x) { return (x.classes & CodePointClasses::kNumber) != 0; };
    const auto is_other = [this](const Character& x) { return IsOther(x); };
    if (is_word(c)) return EndOfRun(at, is_word);
    const bool may_begin_word = rules_.any_prefix ? !is_digit(c) && !IsLineEnd(c) : c.value == ' ';
    if (may_begin_word && next.bytes != 0 && is_word(next)) return EndOfRun(at + c.bytes, is_word);
    if (is_digit(c)) return EndOfRun(at, is_digit, rules_.max_digits);
    const bool space_before = c.value == ' ' && next.bytes != 0;
    if (rules_.digits_take_space && space_before && is_digit(next)) return EndOfRun(at + c.bytes, is_digit);
    if (IsOther(c) || (space_before && IsOther(next))) {
      const size_t end = EndOfRun(at + c.bytes, is_other);
      return rules_.newlines_apart ? EndOfRun(end, IsLineEnd) : end;
    }
    return EndOfBlanks(at);
  }

 private:
  struct Character {
    char32_t value = 0;
    size_t bytes = 0;  // length; 0 beyond the end of the piece
    uint8_t classes = 0;
  };

  Character At(size_t at) const {
    if (at >= text_.size()) return {};
    const CodePoint c = DecodeCodePoint(text_, at);
    return {c.value, c.bytes, classes_[c.value]};
  }

  static bool IsLineEnd(const Character& c) { return c.value == '\r' || c.value == '\n'; }
  bool IsOther(const Character& c) const {
    return (c.classes & (word_ | CodePointClasses::kNumber | CodePointClasses::kSpace)) == 0;
  }

  // The end of a run of accepted characters, at most `most` of them; 0: any number.
  template <typename Accept>
  size_t EndOfRun(size_t at, const Accept& accept, int most = 0) const {
    int taken = 0;
    for (Character c = At(at); c.bytes != 0 && accept(c); c = At(at)) {
      at += c.bytes;
      if (++taken == most) break;
    }
    return at;
  }

  // The end of a contraction: 's 't 're 've 'm 'll 'd; 0 if there is none at `at`.
  size_t EndOfContraction(size_t at) const {
    const Character first = At(at + 1);
    const char32_t a = Folded(first);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return at + 1 + first.bytes;
    const char32_t b = Folded(At(at + 1 + first.bytes));
    const bool two = (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l');
    return two ? at + 3 : 0;
  }

  char32_t Folded(const Character& c) const {
    if (!rules_.any_case) return c.value;
    if (c.value == 0x17F) return 's';  // the long s, which the reference's (?i:'s) matches too
    return c.value >= 'A' && c.value <= 'Z' ? c.value + 0x20 : c.value;
  }

  // The end of a piece of blanks: after the last line end if rules_.newlines_apart; else all but the last of several
  // blanks if text follows, else all.
  size_t EndOfBlanks(size_t at) const {
    size_t end = at, last = at, after_line_end = 0;
    for (Character c = At(end); c.bytes != 0 && (c.classes & CodePointClasses::kSpace) != 0; c = At(end)) {
      last = end;
      end += c.bytes;
      if (IsLineEnd(c)) after_line_end = end;
    }
    if (rules_.newlines_apart && after_line_end != 0) return after_line_end;
    return end == text_.size() || last == at ? end : last;
  }

  const Rules& rules_;
  const CodePointClasses& classes_;
  const absl::string_view text_;
  const uint8_t word_;
};

std::optional<SplitScanner> SplitScanner::Recognise(absl::string_view pattern) {
  struct Known {
    absl::string_view pattern;
    Rules rules;
  };
  static constexpr Rules kNew = {.any_case = true, .any_prefix = true, .max_digits = 1, .newlines_apart = true};
  static const std::vector<Known>* const known = [] {
    Rules qwen = kNew, llama = kNew, marks = kNew;
    llama.max_digits = 3;
    marks.marks_are_letters = true;
    return new std::vector<Known>{
        {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
         qwen},
        {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
         llama},
        {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
         marks},
        {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", {.digits_take_space = true}},
    };
  }();
  for (const Known& one : *known) {
    if (one.pattern == pattern) return SplitScanner(one.rules);
  }
  return std::nullopt;
}

void SplitScanner::Split(absl::string_view text, Piece piece, std::vector<Piece>* out) const {
  const Scan scan(rules_, text.substr(0, piece.end));
  for (size_t at = piece.begin; at < piece.end;) {
    const size_t end = scan.EndOfPiece(at);
    out->push_back({static_cast<uint32_t>(at), static_cast<uint32_t>(end)});
    at = end;
  }
}

}  // namespace syncopate::text::tokenizer
