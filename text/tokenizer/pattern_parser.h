#pragma once

#include <vector>

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "text/tokenizer/code_point_set.h"

namespace syncopate::text::tokenizer {

// A regular expression as a tree.
struct PatternTree {
  enum class Kind {
    kSet,       // one character of `set`
    kSequence,  // the children one after the other
    kChoice,    // the first child that leads to a match
    kRepeat,    // the child, `least` to `most` times
    kAhead,     // look-ahead: the child matches here or, if `negated`, does not; consumes nothing
  };
  Kind kind = Kind::kSequence;
  CodePointSet set;
  std::vector<PatternTree> children;
  int least = 1, most = 1;  // most < 0: any number
  bool possessive = false;  // kRepeat: no backtracking into the repetition
  bool negated = false;     // kAhead
};

// Literals, classes, \p{..}, \s, \d, escapes, groups (?:..) and (?i:..), |, greedy and possessive ? * + {m,n}, (?=..),
// (?!..), in the syntax of the reference's engine. A group may only be repeated by `?`, so that no pattern takes
// exponential time. INVALID_ARGUMENT (reason UNSUPPORTED_TOKENIZER) names an unsupported part, or a pattern of more
// than 4,096 bytes, 400 parts, or groups nested deeper than 20.
absl::StatusOr<PatternTree> ParsePattern(absl::string_view pattern);

}  // namespace syncopate::text::tokenizer
