#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "text/tokenizer/json_node.h"

namespace syncopate::text::tokenizer {

// `text` with every `from` replaced; `from` must not be empty.
std::string ReplaceAll(absl::string_view text, absl::string_view from, absl::string_view to);

// The steps applied to a text before it is split: NFC, NFD, Prepend and Replace, one after the other. Immutable and
// thread-safe.
class Normalizer {
 public:
  // `node` is "normalizer" of the file. Reason UNSUPPORTED_TOKENIZER names a step of another kind.
  static absl::StatusOr<Normalizer> Parse(const JsonNode& node);

  // INVALID_ARGUMENT (reason TEXT_TOO_LONG) if the text grows beyond `max_bytes`. `text` must be UTF-8.
  absl::StatusOr<std::string> Normalize(absl::string_view text, int64_t max_bytes) const;

  // Whether no text is changed.
  bool empty() const { return steps_.empty(); }

 private:
  struct Step {
    enum class Kind { kComposed, kDecomposed, kPrepend, kReplace } kind = Kind::kComposed;
    std::string from, to;  // kReplace uses both, kPrepend only `to`
  };

  absl::Status Add(const JsonNode& node);

  std::vector<Step> steps_;
};

}  // namespace syncopate::text::tokenizer
