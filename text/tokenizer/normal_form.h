#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace syncopate::text::tokenizer {

enum class NormalForm {
  kComposed,    // NFC
  kDecomposed,  // NFD
};

// The text in a normal form of Unicode 9, which the reference uses: newer characters are not changed. `text` must be
// UTF-8. Thread-safe.
std::string Normalized(absl::string_view text, NormalForm form);

}  // namespace syncopate::text::tokenizer
