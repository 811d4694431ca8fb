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

// The regular expressions by which tokenizers split text, on the reference's Unicode classes. Own code instead of a
// library: PCRE2's Unicode is older, its \s takes U+180E, and patterns with classes written out end at 64 KB.
//
// Immutable and thread-safe.
class SplitPattern {
 public:
  // Errors: see ParsePattern.
  static absl::StatusOr<SplitPattern> Parse(absl::string_view pattern);

  // The steps that splitting a text of that many bytes may take, by all its patterns together: 200 a byte, of which
  // those of published models take a tenth.
  static int64_t StepsFor(size_t bytes) { return 200 * static_cast<int64_t>(bytes) + 1000; }

  // Adds to *out the matches within text[piece] and what lies between them, in order; look-ahead sees the end of the
  // piece as the end of the text. `text` must be UTF-8. Takes from *steps_left; INVALID_ARGUMENT (reason
  // TEXT_TOO_COSTLY) when there are none.
  absl::Status Split(absl::string_view text, Piece piece, int64_t* steps_left, std::vector<Piece>* out) const;

 private:
  // The tree with its continuations: what follows a node is a node too, so that matching needs no stack of its own.
  struct Node {
    enum class Kind { kAccept, kSet, kChoice, kRepeat, kAhead } kind = Kind::kAccept;
    CodePointSet set;           // of kSet and kRepeat
    std::vector<int> branches;  // of kChoice in the order of preference; of kAhead what is looked for
    int next = 0;               // of all but kAccept and kChoice
    int least = 1, most = 1;    // of kRepeat; most < 0: any number
    bool possessive = false, negated = false;
  };
  class Matcher;

  int Compile(PatternTree tree, int next);

  std::vector<Node> nodes_;  // the first accepts
  int start_ = 0;
};

}  // namespace syncopate::text::tokenizer
