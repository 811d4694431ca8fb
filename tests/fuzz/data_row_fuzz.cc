// Parses an untrusted line of a data file: the result is an error or a row whose parts are as prompt_row.h promises.
#include <cstdlib>

#include "base/utf8.h"
#include "tests/fuzz/fuzz_target.h"
#include "trainer/data/prompt_row.h"

using syncopate::trainer::ParsePromptRow;

SYNCOPATE_FUZZ_TARGET(data_row) {
  const absl::string_view line(reinterpret_cast<const char*>(data), size);
  for (const char* answer : {"", "a.b"}) {
    const auto row = ParsePromptRow(line, {.answer = answer}, 1 << 16);
    if (!row.ok()) continue;
    const auto judged = nlohmann::json::parse(row->row_json, nullptr, /*allow_exceptions=*/false);
    if (!judged.contains("ground_truth") || !judged.contains("answer")) std::abort();
    if (!judged.is_object() || !judged["prompt"].is_string() || !syncopate::IsUtf8(row->row_json)) std::abort();
    if (row->text.has_value() == (row->messages.is_array() && !row->messages.empty())) std::abort();
  }
  return 0;
}
