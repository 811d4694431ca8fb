#include "text/template/python_text.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/utf8.h"

namespace syncopate::text::chat {
namespace {

// str.isspace.
bool IsPythonBlank(char32_t c) {
  if (c < 0x80) return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
         c == 0x202F || c == 0x205F || c == 0x3000;
}

bool IsAscii(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

// repr() of a string: in single quotes, or in double quotes if the text has single and no double quotes.
void AppendQuoted(absl::string_view text, std::string* out) {
  const bool single = text.find('\'') != absl::string_view::npos, twice = text.find('"') != absl::string_view::npos;
  const char quote = single && !twice ? '"' : '\'';  // as CPython chooses
  out->push_back(quote);
  for (const char c : text) {
    const uint8_t byte = static_cast<uint8_t>(c);
    if (c == quote || c == '\\') {
      out->push_back('\\');
      out->push_back(c);
    } else if (c == '\n') {
      *out += "\\n";
    } else if (c == '\r') {
      *out += "\\r";
    } else if (c == '\t') {
      *out += "\\t";
    } else if (byte < 0x20 || byte == 0x7F) {
      *out += absl::StrFormat("\\x%02x", byte);
    } else {
      out->push_back(c);
    }
  }
  out->push_back(quote);
}

// `ascii`: as json.dumps(ensure_ascii=True), where a character beyond 16 bits becomes a surrogate pair. Models were
// trained on exactly these bytes, so every escape must be Python's.
void AppendJsonString(absl::string_view text, bool ascii, std::string* out) {
  out->push_back('"');
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = DecodeCodePoint(text, at);
    const absl::string_view character = text.substr(at, c.bytes);
    at += c.bytes;
    static constexpr char kEscaped[] = "\"\\\n\r\t\b\f", kLetters[] = "\"\\nrtbf";
    const char* escaped = c.value != 0 && c.value < 0x80 ? std::strchr(kEscaped, static_cast<char>(c.value)) : nullptr;
    if (escaped != nullptr) {
      out->push_back('\\');
      out->push_back(kLetters[escaped - kEscaped]);
    } else if (c.value < 0x20 || (ascii && c.value >= 0x80 && c.value < 0x10000)) {
      *out += absl::StrFormat("\\u%04x", static_cast<uint32_t>(c.value));
    } else if (ascii && c.value >= 0x10000) {
      const uint32_t rest = static_cast<uint32_t>(c.value) - 0x10000;
      *out += absl::StrFormat("\\u%04x\\u%04x", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
    } else {
      out->append(character.data(), character.size());
    }
  }
  out->push_back('"');
}

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, RenderBudget* budget) : style_(style), budget_(budget) {}

  void Write(const Value& value, int64_t level, std::string* out) {
    // Checked while writing, because indents make a small value long.
    if (!budget_->TakeSteps() || static_cast<int64_t>(out->size()) > budget_->limits().made_bytes) {
      return budget_->Exhaust("it makes too much text");
    }
    switch (value.kind()) {
      case Value::Kind::kNone:
        *out += "null";
        return;
      case Value::Kind::kBool:
        *out += value.Truth() ? "true" : "false";
        return;
      case Value::Kind::kInt:
        absl::StrAppend(out, value.whole());
        return;
      case Value::Kind::kFloat:
        *out += NumberText(value.number());
        return;
      case Value::Kind::kString:
        return AppendJsonString(value.text(), style_.ascii, out);
      case Value::Kind::kList:
      case Value::Kind::kTuple:
        return WriteList(value.list(), level, out);
      case Value::Kind::kDict:
        return WriteDict(value.dict(), level, out);
      default:
        budget_->Fail("tojson of a value that is no JSON");
    }
  }

 private:
  static std::string NumberText(double number) {
    // Not valid JSON, but json.dumps writes these words.
    if (std::isnan(number)) return "NaN";
    if (std::isinf(number)) return number > 0 ? "Infinity" : "-Infinity";
    return FloatText(number);
  }

  void NewLine(int64_t level, std::string* out) const {
    if (style_.indent < 0) return;
    out->push_back('\n');
    out->append(static_cast<size_t>(level * style_.indent), ' ');
  }

  void WriteList(const List& items, int64_t level, std::string* out) {
    out->push_back('[');
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) *out += style_.comma;
      NewLine(level + 1, out);
      Write(items[i], level + 1, out);
    }
    if (!items.empty()) NewLine(level, out);
    out->push_back(']');
  }

  void WriteDict(const Dict& entries, int64_t level, std::string* out) {
    std::vector<const std::pair<std::string, Value>*> ordered;
    for (const auto& entry : entries) ordered.push_back(&entry);
    if (style_.sort_keys) {
      std::stable_sort(ordered.begin(), ordered.end(), [](auto* a, auto* b) { return a->first < b->first; });
    }
    out->push_back('{');
    for (size_t i = 0; i < ordered.size(); ++i) {
      if (i > 0) *out += style_.comma;
      NewLine(level + 1, out);
      AppendJsonString(ordered[i]->first, style_.ascii, out);
      *out += style_.colon;
      Write(ordered[i]->second, level + 1, out);
    }
    if (!entries.empty()) NewLine(level, out);
    out->push_back('}');
  }

  const JsonStyle& style_;
  RenderBudget* const budget_;
};

void AppendRepr(const Value& value, RenderBudget* budget, std::string* out) {
  if (!budget->TakeSteps()) return;
  const auto list = [&](char open, char close) {
    out->push_back(open);
    for (size_t i = 0; i < value.list().size(); ++i) {
      if (i > 0) *out += ", ";
      AppendRepr(value.list()[i], budget, out);
    }
    // A tuple of one element has a comma: (1,). (1) is a number.
    if (close == ')' && value.list().size() == 1) out->push_back(',');
    out->push_back(close);
  };
  switch (value.kind()) {
    case Value::Kind::kUndefined:
      *out += "Undefined";
      return;
    case Value::Kind::kNone:
      *out += "None";
      return;
    case Value::Kind::kBool:
      *out += value.Truth() ? "True" : "False";
      return;
    case Value::Kind::kInt:
      absl::StrAppend(out, value.whole());
      return;
    case Value::Kind::kFloat:
      *out += FloatText(value.number());
      return;
    case Value::Kind::kString:
      return AppendQuoted(value.text(), out);
    case Value::Kind::kList:
      return list('[', ']');
    case Value::Kind::kTuple:
      return list('(', ')');
    case Value::Kind::kDict:
      out->push_back('{');
      for (size_t i = 0; i < value.dict().size(); ++i) {
        if (i > 0) *out += ", ";
        AppendQuoted(value.dict()[i].first, out);
        *out += ": ";
        AppendRepr(value.dict()[i].second, budget, out);
      }
      out->push_back('}');
      return;
    default:
      budget->Fail("a function or a namespace has no text");
  }
}

}  // namespace

absl::string_view CharacterAt(absl::string_view text, size_t at) {
  return text.substr(at, DecodeCodePoint(text, at).bytes);
}

int64_t CharactersIn(absl::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return !IsContinuationByte(c); });
}

std::string PythonStr(const Value& value, RenderBudget* budget) {
  if (value.Is(Value::Kind::kString)) return value.text();
  if (value.Is(Value::Kind::kUndefined)) return "";
  return PythonRepr(value, budget);
}

std::string PythonRepr(const Value& value, RenderBudget* budget) {
  std::string out;
  AppendRepr(value, budget, &out);
  budget->TakeBytes(static_cast<int64_t>(out.size()));
  return out;
}

std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::array<char, 40> buffer;
  const auto written = [&](std::chars_format format) {
    return std::string(buffer.data(), std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, format).ptr);
  };
  // Without a precision, to_chars() gives the shortest text that reads back as the same number, as repr() does.
  const std::string scientific = written(std::chars_format::scientific);
  const int exponent = std::atoi(scientific.c_str() + scientific.find('e') + 1);
  // Python writes an exponent for numbers below 1e-4 and from 1e16 on.
  if (exponent < -4 || exponent >= 16) return scientific;
  const std::string fixed = written(std::chars_format::fixed);
  return fixed.find('.') == std::string::npos ? fixed + ".0" : fixed;
}

std::string JsonText(const Value& value, const JsonStyle& style, RenderBudget* budget) {
  std::string out;
  JsonWriter(style, budget).Write(value, 0, &out);
  budget->TakeBytes(static_cast<int64_t>(out.size()));
  return out;
}

std::string Strip(absl::string_view text, const Value* characters, bool left, bool right) {
  const bool given = characters != nullptr && characters->Is(Value::Kind::kString);
  const auto goes = [&](absl::string_view character) {
    if (!given) return IsPythonBlank(DecodeCodePoint(character, 0).value);
    return characters->text().find(std::string(character)) != std::string::npos;
  };
  while (left && !text.empty() && goes(CharacterAt(text, 0))) text.remove_prefix(CharacterAt(text, 0).size());
  while (right && !text.empty()) {
    size_t at = text.size() - 1;
    // Moves back to the first byte of the last character.
    while (IsContinuationByte(text[at])) --at;
    if (!goes(text.substr(at))) break;
    text.remove_suffix(text.size() - at);
  }
  return std::string(text);
}

List Split(absl::string_view text, const Value* separator, int64_t most, bool from_right, RenderBudget* budget) {
  List parts;
  const auto add = [&](absl::string_view part) {
    budget->TakeSteps();
    parts.push_back(Value::String(std::string(part)));
  };
  budget->TakeBytes(static_cast<int64_t>(text.size()));
  if (separator == nullptr || !separator->Is(Value::Kind::kString)) {
    if (most >= 0) budget->Fail("split at blanks with maxsplit is not supported");
    // A run of blanks is one separator and makes no empty parts, unlike a given separator.
    size_t begin = 0, at = 0;
    while (at < text.size() && budget->ok()) {
      const CodePoint c = DecodeCodePoint(text, at);
      if (IsPythonBlank(c.value)) {
        if (at > begin) add(text.substr(begin, at - begin));
        begin = at + c.bytes;
      }
      at += c.bytes;
    }
    if (at > begin) add(text.substr(begin));
    return parts;
  }
  const std::string& cut = separator->text();
  if (cut.empty()) {
    budget->Fail("split by an empty string");
    return parts;
  }
  if (from_right) {
    size_t hit;
    for (; most != 0 && budget->ok() && (hit = text.rfind(cut)) != absl::string_view::npos; --most) {
      add(text.substr(hit + cut.size()));
      text = text.substr(0, hit);
    }
    add(text);
    // The parts were found from the right.
    std::reverse(parts.begin(), parts.end());
    return parts;
  }
  size_t hit;
  for (; most != 0 && budget->ok() && (hit = text.find(cut)) != absl::string_view::npos; --most) {
    add(text.substr(0, hit));
    text.remove_prefix(hit + cut.size());
  }
  add(text);
  return parts;
}

List SplitLines(absl::string_view text, RenderBudget* budget) {
  List lines;
  budget->TakeBytes(static_cast<int64_t>(text.size()));
  const auto ends_line = [](char32_t c) {
    return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
  };
  size_t begin = 0;
  for (size_t at = 0; at < text.size() && budget->ok();) {
    const CodePoint c = DecodeCodePoint(text, at);
    const size_t end = at;
    at += c.bytes;
    if (!ends_line(c.value)) continue;
    // CR LF ends one line.
    if (c.value == '\r' && at < text.size() && text[at] == '\n') ++at;
    budget->TakeSteps();
    lines.push_back(Value::String(std::string(text.substr(begin, end - begin))));
    begin = at;
  }
  // A line end at the end of the text does not begin another line.
  if (begin < text.size()) lines.push_back(Value::String(std::string(text.substr(begin))));
  return lines;
}

std::string Replace(absl::string_view text, absl::string_view from, absl::string_view to, int64_t most,
                    RenderBudget* budget) {
  std::string out;
  if (from.empty()) budget->Fail("replace of an empty string is not supported");
  for (size_t hit; most != 0 && budget->ok() && (hit = text.find(from)) != absl::string_view::npos; --most) {
    out.append(text.data(), hit).append(to.data(), to.size());
    text.remove_prefix(hit + from.size());
    budget->TakeBytes(static_cast<int64_t>(hit + to.size()));
  }
  budget->TakeBytes(static_cast<int64_t>(text.size()));
  return out.append(text.data(), text.size());
}

std::string WithCase(absl::string_view text, LetterCase letter_case, RenderBudget* budget) {
  // Unicode's case rules depend on its version, and a template must give the same tokens in training and in serving.
  if (!IsAscii(text)) budget->Fail("upper and lower case of letters outside ASCII are not supported");
  budget->TakeBytes(static_cast<int64_t>(text.size()));
  std::string out;
  bool at_start = true;
  for (const char c : text) {
    const bool upper = letter_case == LetterCase::kUpper || (letter_case != LetterCase::kLower && at_start);
    const int byte = static_cast<uint8_t>(c);
    out.push_back(static_cast<char>(upper ? std::toupper(byte) : std::tolower(byte)));
    // In a title, the next letter after any other character is a capital; capitalize() has only one capital.
    at_start = letter_case == LetterCase::kTitle && std::isalpha(byte) == 0;
  }
  return out;
}

}  // namespace syncopate::text::chat
