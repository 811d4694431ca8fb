#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace syncopate::text::tokenizer {

enum class NormalForm {
  kComposed,    // NFC
  kDecomposed,  // NFD
};

// The text in a normal form of Unicode 9, which is the reference's, so that newer characters stay as they are. `text`
// must be UTF-8. Thread-safe.
std::string Normalized(absl::string_view text, NormalForm form);

}  // namespace syncopate::text::tokenizer
