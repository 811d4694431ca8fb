#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace syncopate::text::tokenizer {

// The bytes of a token of a byte-level vocabulary, which writes each byte as one printable character: printable ASCII
// and Latin-1 as themselves, the rest from U+0100 on. nullopt if the token has a character outside of that alphabet.
std::optional<std::string> FromByteAlphabet(absl::string_view token);

}  // namespace syncopate::text::tokenizer
