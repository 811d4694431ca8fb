// Reads an untrusted tokenizer.json, and after a 0 byte a text for it: the result is an error, or ids within limits.
#include <cstdlib>

#include "base/utf8.h"
#include "tests/fuzz/fuzz_target.h"
#include "text/tokenizer/tokenizer.h"

using syncopate::text::tokenizer::Tokenizer;

SYNCOPATE_FUZZ_TARGET(tokenizer_json) {
  const absl::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(input.find('\0'), input.size());
  const absl::string_view text = end < input.size() ? input.substr(end + 1) : "The text, größer 中文 12 's\n";
  const auto tokenizer = Tokenizer::Parse(input.substr(0, end), {.max_tokens = 1 << 16, .max_text_bytes = 1 << 16});
  if (!tokenizer.ok()) return 0;
  const auto ids = (*tokenizer)->Encode(text, /*add_special_tokens=*/true);
  if (!ids.ok()) return 0;
  if (!syncopate::IsUtf8((*tokenizer)->Decode(*ids, false))) std::abort();
  auto stream = (*tokenizer)->Stream(true);
  for (const int32_t id : *ids) {
    if (!syncopate::IsUtf8(stream.Add(id))) std::abort();
  }
  stream.End();
  return 0;
}
