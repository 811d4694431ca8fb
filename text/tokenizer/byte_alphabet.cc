#include "text/tokenizer/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "base/utf8.h"

namespace syncopate::text::tokenizer {
namespace {

constexpr int kBytes = 256;
// The alphabet's last character, for the last of the 68 bytes that are not written as themselves.
constexpr char32_t kLastCharacter = 0x143;

// For each code point the byte that it stands for, or -1.
std::array<int16_t, kLastCharacter + 1> MakeBytes() {
  std::array<int16_t, kLastCharacter + 1> bytes;
  bytes.fill(-1);
  char32_t extra = kBytes;
  for (int16_t byte = 0; byte < kBytes; ++byte) {
    const bool itself = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    bytes[itself ? static_cast<size_t>(byte) : extra++] = byte;
  }
  return bytes;
}

}  // namespace

std::optional<std::string> FromByteAlphabet(absl::string_view token) {
  static const std::array<int16_t, kLastCharacter + 1> kByteOf = MakeBytes();
  std::string bytes;
  for (size_t at = 0; at < token.size();) {
    const CodePoint c = DecodeCodePoint(token, at);
    if (c.value > kLastCharacter || kByteOf[c.value] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kByteOf[c.value]));
    at += c.bytes;
  }
  return bytes;
}

}  // namespace syncopate::text::tokenizer
