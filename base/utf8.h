#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

// UTF-8 as RFC 3629 defines it: no surrogates, nothing beyond U+10FFFF, no overlong forms.
namespace syncopate {

struct CodePoint {
  char32_t value = 0;
  size_t bytes = 0;
};

// The code point that begins at byte `at` of well-formed text; `at` must be the first byte of a character.
inline CodePoint DecodeCodePoint(absl::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<char32_t>(static_cast<uint8_t>(text[at + i])); };
  const char32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (lead < 0xF0) return {(lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  return {(lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F), 4};
}

// Whether a byte continues a character instead of beginning one.
inline bool IsContinuationByte(char byte) { return (static_cast<uint8_t>(byte) & 0xC0) == 0x80; }

// `code_point` must be at most U+10FFFF and no surrogate.
void AppendUtf8(char32_t code_point, std::string* text);

// Bytes of the longest prefix that consists of whole characters; text.size() if all of the text does.
size_t WellFormedPrefix(absl::string_view text);
inline bool IsUtf8(absl::string_view text) { return WellFormedPrefix(text) == text.size(); }

// The text with each malformed part replaced by one U+FFFD: a part is the longest beginning of a character that does
// not continue as one, or a byte that begins no character.
std::string ReplaceMalformed(absl::string_view text);

// Moves all of *text out that can be shown: malformed parts are replaced, and a well-formed but incomplete last
// character stays in *text.
std::string TakeWholeCharacters(std::string* text);

}  // namespace syncopate
