#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "text/template/value.h"

// Strings as Python handles them: by character, with its blanks and its ways of writing values. All text is UTF-8.
namespace syncopate::text::chat {

// The character that begins at `at`.
absl::string_view CharacterAt(absl::string_view text, size_t at);
int64_t CharactersIn(absl::string_view text);

// str(value) and repr(value); an undefined value is "".
std::string TextOf(const Value& value, RenderBudget* budget);
std::string ReprOf(const Value& value, RenderBudget* budget);
// repr of a float: the shortest digits that read back.
std::string FloatText(double value);

struct JsonStyle {
  bool ascii = false, sort_keys = false;
  int64_t indent = -1;  // below 0: on one line
  std::string comma = ", ", colon = ": ";
};
// json.dumps(value), as transformers sets it up. Fails for what is no JSON.
std::string JsonText(const Value& value, const JsonStyle& style, RenderBudget* budget);

// str.strip and its sisters; without `characters` of Python's blanks.
std::string Strip(absl::string_view text, const Value* characters, bool left, bool right);
// str.split and str.rsplit; without a string as `separator` at runs of blanks. `most` < 0: any number.
List Split(absl::string_view text, const Value* separator, int64_t most, bool from_right, RenderBudget* budget);
List SplitLines(absl::string_view text, RenderBudget* budget);
std::string Replace(absl::string_view text, absl::string_view from, absl::string_view to, int64_t most,
                    RenderBudget* budget);

enum class LetterCase { kLower, kUpper, kTitle, kCapitalized };
// Of ASCII letters. Text with others fails: their cases are not known here.
std::string WithCase(absl::string_view text, LetterCase letter_case, RenderBudget* budget);

}  // namespace syncopate::text::chat
