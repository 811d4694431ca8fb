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

// How a text is split into the pieces within which tokens are merged. Immutable and thread-safe.
class PreTokenizer {
 public:
  struct Options {
    bool use_scanner = true;  // false: SplitPattern even where SplitScanner would do, to compare the two
  };

  // `node` is "pre_tokenizer" of the file: Split by an isolated regular expression, ByteLevel, Digits, Metaspace, or a
  // sequence of them. Reason UNSUPPORTED_TOKENIZER names any other kind.
  static absl::StatusOr<PreTokenizer> Parse(const JsonNode& node, const Options& options);

  // Whether the vocabulary is one of bytes.
  bool byte_level() const { return byte_level_; }

  // Splits *text, which may be written anew on the way, into *pieces (none of them empty). `at_start`: the text is
  // where the whole one begins. Errors: see SplitPattern::Split.
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
