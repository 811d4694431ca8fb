// Renders an untrusted chat template on a conversation with tools: the result is an error or UTF-8 within limits.
#include <cstdlib>

#include "base/utf8.h"
#include "tests/fuzz/fuzz_target.h"
#include "text/template/chat_template.h"

SYNCOPATE_FUZZ_TARGET(chat_template) {
  static const auto* const context = new nlohmann::ordered_json(nlohmann::ordered_json::parse(R"({
    "messages": [{"role": "system", "content": " naïve 'x'\n"}, {"role": "user", "content": [{"type": "text", "text": "q"}]},
                 {"role": "assistant", "content": null, "tool_calls": [{"id": "abcdef123", "type": "function",
                  "function": {"name": "f", "arguments": {"a": 1.5, "b": [true, null]}}}]},
                 {"role": "tool", "content": "22"}, {"role": "assistant", "content": "<think>\nt\n</think>\n\na"}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}],
    "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>"})"));
  const auto parsed =
      syncopate::text::chat::ChatTemplate::Parse(absl::string_view(reinterpret_cast<const char*>(data), size));
  if (!parsed.ok()) return 0;
  const auto rendered =
      parsed->Render(*context, 0, {.steps = 100'000, .output_bytes = 1 << 20, .made_bytes = 16 << 20});
  if (rendered.ok() && !syncopate::IsUtf8(rendered->text)) std::abort();
  return 0;
}
