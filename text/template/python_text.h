#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "text/template/value.h"

// Strings as in Python: by character, with Python's set of blanks and its text forms of values. All text is UTF-8.
namespace syncopate::text::chat {

// The character that begins at `at`.
absl::string_view CharacterAt(absl::string_view text, size_t at);
int64_t CharactersIn(absl::string_view text);

// str(value), which is "" for an undefined value, and repr(value).
std::string PythonStr(const Value& value, RenderBudget* budget);
std::string PythonRepr(const Value& value, RenderBudget* budget);
// repr of a float: the shortest digits that give the same number when read.
std::string FloatText(double value);

struct JsonStyle {
  bool ascii = false, sort_keys = false;
  int64_t indent = -1;  // below 0: on one line
  std::string comma = ", ", colon = ": ";
};
// json.dumps(value) with transformers' settings. Fails if `value` is no JSON.
std::string JsonText(const Value& value, const JsonStyle& style, RenderBudget* budget);

// str.strip, str.lstrip and str.rstrip; if `characters` is null or no string, they remove Python's blanks.
std::string Strip(absl::string_view text, const Value* characters, bool left, bool right);
// str.split and str.rsplit; if `separator` is null or no string, they split at runs of blanks. `most`: the most splits;
// < 0: any number.
List Split(absl::string_view text, const Value* separator, int64_t most, bool from_right, RenderBudget* budget);
List SplitLines(absl::string_view text, RenderBudget* budget);
std::string Replace(absl::string_view text, absl::string_view from, absl::string_view to, int64_t most,
                    RenderBudget* budget);

enum class LetterCase { kLower, kUpper, kTitle, kCapitalized };
// Changes the case of ASCII letters. Fails for text with characters outside ASCII.
std::string WithCase(absl::string_view text, LetterCase letter_case, RenderBudget* budget);

}  // namespace syncopate::text::chat
