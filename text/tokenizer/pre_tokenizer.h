#pragma once

#include <string>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "text/tokenizer/json_node.h"
#include "text/tokenizer/split_pattern.h"
#include "text/tokenizer/split_scanner.h"

namespace syncopate::text::tokenizer {

// Splits a text into pieces; tokens are merged within a piece only. Immutable and thread-safe.
class PreTokenizer {
 public:
  struct Options {
    bool use_scanner = true;  // false: always use SplitPattern, to compare it with SplitScanner
  };

  // `node` is "pre_tokenizer" of the file: Split by an isolated regular expression, ByteLevel, Digits, Metaspace, or a
  // sequence of these. Reason UNSUPPORTED_TOKENIZER names a step of another kind.
  static absl::StatusOr<PreTokenizer> Parse(const JsonNode& node, const Options& options);

  // Whether the vocabulary is byte-level.
  bool byte_level() const { return byte_level_; }

  // Splits *text, which may be rewritten for that, into *pieces (none of them empty). `at_start`: *text is the
  // beginning of the whole text. Errors: see SplitPattern::Split.
  absl::Status Split(bool at_start, std::string* text, std::vector<Piece>* pieces) const;

 private:
  struct Digits {
    bool individual = false;
  };
  struct Metaspace {
    std::string replacement;
    bool prepend = true, first_only = false, split = true;
  };
  using Step = std::variant<SplitScanner, SplitPattern, Digits, Metaspace>;

  absl::Status Add(const JsonNode& node, const Options& options);
  absl::Status AddPattern(absl::string_view pattern, const Options& options);
  absl::Status AddMetaspace(const JsonNode& node);

  static void SplitDigits(const Digits& digits, absl::string_view text, Piece piece, std::vector<Piece>* out);
  static void SplitMetaspace(const Metaspace& metaspace, bool at_start, std::string* text, std::vector<Piece>* out);

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

}  // namespace syncopate::text::tokenizer
