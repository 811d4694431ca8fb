#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "text/tokenizer/pattern_parser.h"

namespace syncopate::text::tokenizer {

// A part of a text, in bytes.
struct Piece {
  uint32_t begin = 0, end = 0;
};

// The regular expressions by which tokenizers split text, with the reference's Unicode classes. Own code instead of a
// library: PCRE2 has an older Unicode, its \s matches U+180E, and its patterns with expanded classes are limited to 64
// KB.
//
// Immutable and thread-safe.
class SplitPattern {
 public:
  // Errors: see ParsePattern.
  static absl::StatusOr<SplitPattern> Parse(absl::string_view pattern);

  // The steps that all patterns together may take to split a text of `bytes` bytes: 200 for each byte. Published models
  // take a tenth of that.
  static int64_t StepsFor(size_t bytes) { return 200 * static_cast<int64_t>(bytes) + 1000; }

  // Adds the matches within text[piece] and the parts between them to *out, in order. Look-ahead takes the end of the
  // piece for the end of the text. `text` must be UTF-8. Subtracts its steps from *steps_left; INVALID_ARGUMENT (reason
  // TEXT_TOO_COSTLY) when none are left.
  absl::Status Split(absl::string_view text, Piece piece, int64_t* steps_left, std::vector<Piece>* out) const;

 private:
  // The tree with continuations: each node names the node that follows it, so that matching needs no stack of its own.
  struct Node {
    enum class Kind { kAccept, kSet, kChoice, kRepeat, kAhead } kind = Kind::kAccept;
    CodePointSet set;           // kSet and kRepeat
    std::vector<int> branches;  // kChoice: in the order of preference; kAhead: the pattern to look for
    int next = 0;               // all but kAccept and kChoice
    int least = 1, most = 1;    // kRepeat; most < 0: any number
    bool possessive = false, negated = false;
  };
  class Matcher;

  int Compile(PatternTree tree, int next);

  std::vector<Node> nodes_;  // the first node is kAccept
  int start_ = 0;
};

}  // namespace syncopate::text::tokenizer
