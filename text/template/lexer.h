#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/status.h"

namespace syncopate::text::chat {

struct Token {
  enum class Kind {
    kText,
    kOpenPrint,   // {{
    kClosePrint,  // }}
    kOpenBlock,   // {%
    kCloseBlock,  // %}
    kName,
    kInteger,
    kFloat,
    kString,  // unescaped
    kOperator,
    kEnd,
  };
  Kind kind = Kind::kEnd;
  std::string text;
  int line = 0;
};

// Makes an error INVALID_ARGUMENT, reason BAD_TEMPLATE, with the line.
absl::Status BadTemplate(int line, absl::string_view what);

// A template's tokens, with one of kind kEnd at the end. Blanks around tags are removed as by Jinja with transformers'
// settings (trim_blocks, lstrip_blocks, and the signs - and +); comments are left out. `source` must be UTF-8.
absl::StatusOr<std::vector<Token>> GetTokens(absl::string_view source);

}  // namespace syncopate::text::chat
