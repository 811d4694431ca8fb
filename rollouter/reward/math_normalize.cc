#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "rollouter/reward/math_value.h"

namespace syncopate::rollouter {
namespace {

bool IsLetter(char c) { return absl::ascii_isalpha(static_cast<unsigned char>(c)); }

// Index behind the brace that closes the one at `open`, or npos.
size_t BehindGroup(absl::string_view text, size_t open) {
  int depth = 0;
  for (size_t i = open; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;  // an escaped brace is no brace
    } else if (text[i] == '{') {
      ++depth;
    } else if (text[i] == '}' && --depth == 0) {
      return i + 1;
    }
  }
  return absl::string_view::npos;
}

// What a command \name without arguments turns into; null if it stays.
const char* GetReplacement(absl::string_view name) {
  static constexpr std::pair<absl::string_view, const char*> kCommands[] = {
      {"left", ""},        {"right", ""},       {"big", ""},         {"Big", ""},       {"bigl", ""},
      {"bigr", ""},        {"Bigl", ""},        {"Bigr", ""},        {"quad", " "},     {"qquad", " "},
      {"dfrac", "\\frac"}, {"tfrac", "\\frac"}, {"cfrac", "\\frac"}, {"degree", ""},    {"displaystyle", ""},
      {"cdot", "*"},       {"times", "*"},      {"div", "/"},        {"lbrace", "\\{"}, {"rbrace", "\\}"},
      {"lparen", "("},     {"rparen", ")"},     {"limits", ""},
  };
  for (const auto& [command, replacement] : kCommands) {
    if (command == name) return replacement;
  }
  return nullptr;
}

bool IsTextCommand(absl::string_view name) {
  for (const absl::string_view one :
       {"text", "mathrm", "textbf", "mathbf", "mbox", "textrm", "textit", "operatorname"}) {
    if (one == name) return true;
  }
  return false;
}

// "and" and "or" make a list; a word for a number, or one that may be the answer itself, stays.
std::string TextInPlace(absl::string_view content, bool alone) {
  const std::string word = absl::AsciiStrToLower(absl::StripAsciiWhitespace(content));
  if (word == "and" || word == "or" || word == ", and" || word == ", or") return ",";
  if (alone) return std::string(absl::StripAsciiWhitespace(content));
  for (const absl::string_view number : {"hundred", "thousand", "million", "billion", "trillion", "dozen", "half", "pi",
                                         "percent", "quarter", "third", "pair", "double", "minus", "negative", "not"}) {
    if (absl::StrContains(word, number)) return word;
  }
  // A unit: letters, blanks, dots, exponents of units.
  for (const char c : word) {
    if (IsDigit(c) || c == '=' || c == '<' || c == '>' || c == '\\') return word;
  }
  return " ";
}

std::string WithoutCommands(absl::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      out.push_back(text[i++]);
      continue;
    }
    size_t end = i + 1;
    while (end < text.size() && IsLetter(text[end])) ++end;
    if (end == i + 1) {  // \, \; \: and "\ " are blanks, \! is nothing
      const char sign = text[i + 1];
      if (sign == '%' || sign == '{' || sign == '}') out.append(sign == '%' ? "%" : std::string{'\\', sign});
      if (sign == ' ' || sign == ',' || sign == ';' || sign == ':') out.push_back(' ');
      i += 2;
      continue;
    }
    const absl::string_view name = text.substr(i + 1, end - i - 1);
    const size_t open = text.find_first_not_of(' ', end);
    if (IsTextCommand(name) && open != absl::string_view::npos && text[open] == '{') {
      const size_t behind = BehindGroup(text, open);
      if (behind != absl::string_view::npos) {
        const bool alone =
            absl::StripAsciiWhitespace(out).empty() && absl::StripAsciiWhitespace(text.substr(behind)).empty();
        out += TextInPlace(text.substr(open + 1, behind - open - 2), alone);
        i = behind;
        // The exponent of a unit goes with it.
        if (out.back() == ' ' && text.substr(i, 1) == "^") {
          const size_t end_of_exponent = text.substr(i + 1, 1) == "{" ? BehindGroup(text, i + 1) : i + 2;
          i = std::min(end_of_exponent, text.size());
        }
        continue;
      }
    }
    const char* replacement = GetReplacement(name);
    out += replacement != nullptr ? std::string(replacement) : std::string(text.substr(i, end - i));
    i = end;
  }
  return out;
}

// 1,000 and 1{,}000 lose their commas where no bracket is open: in (1,000) they could be two numbers.
std::string WithoutThousands(absl::string_view text) {
  std::string out;
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '(' || text[i] == '[' || text[i] == '{') ++depth;
    if (text[i] == ')' || text[i] == ']' || text[i] == '}') --depth;
    auto three_digits = [&text](size_t at) {
      return at + 3 <= text.size() && IsDigit(text[at]) && IsDigit(text[at + 1]) && IsDigit(text[at + 2]) &&
             (at + 3 == text.size() || !IsDigit(text[at + 3]));
    };
    const bool after_digit = !out.empty() && IsDigit(out.back());
    if (after_digit && depth == 0 && text[i] == ',' && three_digits(i + 1)) {
      size_t begin = out.find_last_not_of("0123456789");
      begin = begin == std::string::npos ? 0 : begin + 1;
      // At most three digits before the first comma, and no decimal point before them.
      const bool first_group = out.size() - begin <= 3 && out[begin] != '0' && (begin == 0 || out[begin - 1] != '.');
      const bool later_group = out.size() - begin > 3 && i >= 4 && text[i - 4] == ',';
      if (first_group || later_group) continue;
    }
    out.push_back(text[i]);
  }
  return out;
}

// "x = 5" and "x \in [0, 1]" without their beginning. Two equations stay.
absl::string_view WithoutName(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  if (text.empty() || !IsLetter(text[0])) return text;
  absl::string_view rest = text.substr(1);
  if (absl::ConsumePrefix(&rest, "_") && !rest.empty()) {
    const size_t behind = rest[0] == '{' ? BehindGroup(rest, 0) : 1;
    if (behind == absl::string_view::npos) return text;
    rest.remove_prefix(behind);
  }
  rest = absl::StripLeadingAsciiWhitespace(rest);
  if (!absl::ConsumePrefix(&rest, "=") && !absl::ConsumePrefix(&rest, "\\in ")) return text;
  return absl::StrContains(rest, "=") ? text : absl::StripLeadingAsciiWhitespace(rest);
}

}  // namespace

std::string NormalizeMath(absl::string_view latex) {
  std::string text = absl::StrReplaceAll(latex, {{"\\$", ""},
                                                 {"$", ""},
                                                 {"{,}", ","},
                                                 {"\\%", "%"},
                                                 {"~", " "},
                                                 {"\n", " "},
                                                 {"\t", " "},
                                                 {"^{\\circ}", ""},
                                                 {"^\\circ", ""},
                                                 {"\u00b0", ""},
                                                 {"\u2212", "-"},
                                                 {"\u00d7", "*"},
                                                 {"\u03c0", "\\pi "}});
  text = WithoutCommands(text);
  text = WithoutThousands(std::string(WithoutName(text)));
  absl::string_view view = absl::StripAsciiWhitespace(text);
  while (absl::ConsumeSuffix(&view, ".") || absl::ConsumeSuffix(&view, ",")) view = absl::StripAsciiWhitespace(view);
  // Blanks mean nothing but between two signs that would run together.
  std::string out;
  for (size_t i = 0; i < view.size(); ++i) {
    if (view[i] != ' ') {
      out.push_back(view[i]);
      continue;
    }
    if (out.empty() || out.back() == ' ') continue;
    const size_t next = view.find_first_not_of(' ', i);
    auto word = [](char c) { return IsDigit(c) || IsLetter(c) || c == '.'; };
    if (next != absl::string_view::npos && word(out.back()) && word(view[next])) out.push_back(' ');
  }
  return out;
}

}  // namespace syncopate::rollouter
