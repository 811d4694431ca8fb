#include "base/utf8.h"

#include <algorithm>
#include <cstring>

namespace syncopate {
namespace {

constexpr absl::string_view kReplacement = "\xEF\xBF\xBD";

// The bytes at one position of a text.
struct Sequence {
  size_t bytes = 1;    // length of the character, or of the longest part that could begin one
  bool whole = false;  // it is a whole character
  bool open = false;   // the text ends before the character does
};

Sequence SequenceAt(absl::string_view text, size_t at) {
  const uint8_t lead = static_cast<uint8_t>(text[at]);
  if (lead < 0x80) return {1, true, false};
  const size_t wanted = lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
  if (wanted == 0) return {};
  size_t bytes = 1;
  for (; bytes < wanted && at + bytes < text.size(); ++bytes) {
    const uint8_t byte = static_cast<uint8_t>(text[at + bytes]);
    // The second byte shows overlong forms, surrogates and values beyond U+10FFFF.
    const uint8_t low = bytes > 1 ? 0x80 : lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    const uint8_t high = bytes > 1 ? 0xBF : lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (byte < low || byte > high) return {bytes, false, false};
  }
  return {bytes, bytes == wanted, bytes < wanted};
}

// The end of the run of ASCII that begins at `at`, in steps of eight bytes: most text is ASCII.
size_t AsciiEnd(absl::string_view text, size_t at) {
  for (uint64_t word; at + sizeof(word) <= text.size(); at += sizeof(word)) {
    std::memcpy(&word, text.data() + at, sizeof(word));
    if ((word & 0x8080808080808080ull) != 0) return at;
  }
  return at;
}

}  // namespace

void AppendUtf8(char32_t code_point, std::string* text) {
  const auto add = [text](char32_t byte) { text->push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) return add(code_point);
  if (code_point < 0x800) {
    add(0xC0 | code_point >> 6);
  } else if (code_point < 0x10000) {
    add(0xE0 | code_point >> 12);
    add(0x80 | (code_point >> 6 & 0x3F));
  } else {
    add(0xF0 | code_point >> 18);
    add(0x80 | (code_point >> 12 & 0x3F));
    add(0x80 | (code_point >> 6 & 0x3F));
  }
  add(0x80 | (code_point & 0x3F));
}

size_t WellFormedPrefix(absl::string_view text) {
  size_t at = AsciiEnd(text, 0);
  while (at < text.size()) {
    const Sequence sequence = SequenceAt(text, at);
    if (!sequence.whole) return at;
    at += sequence.bytes;
    if (sequence.bytes == 1) at = AsciiEnd(text, at);
  }
  return at;
}

std::string ReplaceMalformed(absl::string_view text) {
  std::string shown;
  for (size_t at = 0; at < text.size();) {
    const size_t good = WellFormedPrefix(text.substr(at));
    shown.append(text.data() + at, good);
    at += good;
    if (at == text.size()) break;
    shown.append(kReplacement.data(), kReplacement.size());
    at += SequenceAt(text, at).bytes;
  }
  return shown;
}

std::string TakeWholeCharacters(std::string* text) {
  constexpr size_t kLongest = 4;
  size_t kept = 0;
  for (size_t back = 1; back <= std::min(kLongest, text->size()); ++back) {
    const Sequence sequence = SequenceAt(*text, text->size() - back);
    if (sequence.open && sequence.bytes == back) kept = back;
    if (!IsContinuationByte((*text)[text->size() - back])) break;
  }
  std::string shown = ReplaceMalformed(absl::string_view(*text).substr(0, text->size() - kept));
  text->erase(0, text->size() - kept);
  return shown;
}

}  // namespace syncopate
