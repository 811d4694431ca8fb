#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace syncopate::text::tokenizer {

// Byte-level vocabularies write each byte as one printable character: ASCII and Latin-1 letters as themselves, the
// rest from U+0100 on. The bytes that a token stands for; none where it has a character outside of that alphabet.
std::optional<std::string> FromByteAlphabet(absl::string_view token);

}  // namespace syncopate::text::tokenizer
