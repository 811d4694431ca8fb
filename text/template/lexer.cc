#include "text/template/lexer.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/utf8.h"

namespace syncopate::text::chat {
namespace {

bool IsDigit(char c) { return absl::ascii_isdigit(static_cast<uint8_t>(c)); }
bool IsNameStart(char c) { return absl::ascii_isalpha(static_cast<uint8_t>(c)) || c == '_'; }
bool IsNamePart(char c) { return IsNameStart(c) || IsDigit(c); }
bool IsSpace(char c) { return absl::ascii_isspace(static_cast<uint8_t>(c)); }

// Works with trim_blocks and lstrip_blocks, as transformers does: removes the line end after a block and the indent
// before it. Every wrong blank would be another token for the model.
class Lexer {
 public:
  explicit Lexer(absl::string_view source) {
    // As in Jinja, every line end becomes \n, and the last one of the file is dropped.
    for (size_t i = 0; i < source.size(); ++i) {
      if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') continue;
      source_ += source[i] == '\r' ? '\n' : source[i];
    }
    if (!source_.empty() && source_.back() == '\n') source_.pop_back();
  }

  absl::StatusOr<std::vector<Token>> Run() {
    while (at_ < source_.size()) {
      SYNCOPATE_ASSIGN_OR_RETURN(char tag, TextUpToTag());
      if (tag == '#') SYNCOPATE_RETURN_IF_ERROR(Comment());
      if (tag == '{' || tag == '%') SYNCOPATE_RETURN_IF_ERROR(Tag(tag));
    }
    Add(Token::Kind::kEnd);
    return std::move(tokens_);
  }

 private:
  absl::Status Refuse(absl::string_view what) const { return BadTemplate(line_, what); }

  void Add(Token::Kind kind, std::string text = "") { tokens_.push_back({kind, std::move(text), line_}); }

  void AdvanceTo(size_t to) {
    line_ += static_cast<int>(
        std::count(source_.begin() + static_cast<int64_t>(at_), source_.begin() + static_cast<int64_t>(to), '\n'));
    at_ = to;
  }

  char CharAt(size_t at) const { return at < source_.size() ? source_[at] : '\0'; }

  // Adds the text before the next tag and moves behind the tag's two characters; returns the second, or '\0' at the
  // end.
  absl::StatusOr<char> TextUpToTag() {
    size_t open = source_.find('{', at_);
    while (open != std::string::npos && (CharAt(open + 1) == '\0' || std::strchr("{%#", CharAt(open + 1)) == nullptr)) {
      open = source_.find('{', open + 1);
    }
    const bool last = open == std::string::npos;
    std::string text = source_.substr(at_, last ? std::string::npos : open - at_);
    const bool was_cut = Trim(&text);
    const char tag = last ? '\0' : source_[open + 1];
    const char sign = last ? '\0' : CharAt(open + 2);
    if (sign == '-') {
      while (!text.empty() && IsSpace(text.back())) text.pop_back();
    } else if (!last && sign != '+' && tag != '{') {
      StripIndent(was_cut, &text);
    }
    if (!text.empty()) Add(Token::Kind::kText, std::move(text));
    AdvanceTo(last ? source_.size() : open + 2);
    return tag;
  }

  // Removes the blanks or the line end that the tag before `text` trims. True if it removed a line end.
  bool Trim(std::string* text) {
    if (trim_blanks_) {
      text->erase(0, std::min(text->find_first_not_of(" \t\n\r\v\f"), text->size()));
      return false;
    }
    const bool cut = trim_newline_ && absl::StartsWith(*text, "\n");
    if (cut) text->erase(0, 1);
    return cut;
  }

  // Removes blanks between the start of a line and a tag.
  void StripIndent(bool after_line_end, std::string* text) const {
    size_t blank = text->size();
    while (blank > 0 && ((*text)[blank - 1] == ' ' || (*text)[blank - 1] == '\t')) --blank;
    const bool at_line_start = blank > 0 ? (*text)[blank - 1] == '\n' : after_line_end || at_ == 0;
    if (at_line_start) text->resize(blank);
  }

  // A comment trims the text around it as a tag does, and gives no token.
  absl::Status Comment() {
    const size_t close = source_.find("#}", at_);
    if (close == std::string::npos) return Refuse("a comment without end");
    const char sign = close > at_ ? source_[close - 1] : '\0';
    trim_blanks_ = sign == '-';
    trim_newline_ = sign != '+';
    AdvanceTo(close + 2);
    return absl::OkStatus();
  }

  absl::Status Tag(char tag) {
    const bool print = tag == '{';
    const absl::string_view close = print ? "}}" : "%}";
    if (CharAt(at_) == '-' || CharAt(at_) == '+') ++at_;
    Add(print ? Token::Kind::kOpenPrint : Token::Kind::kOpenBlock);
    int brackets = 0;
    while (at_ < source_.size()) {
      const absl::string_view rest = absl::string_view(source_).substr(at_);
      const char c = rest[0];
      const bool with_sign = (c == '-' || (c == '+' && !print)) && absl::StartsWith(rest.substr(1), close);
      // Inside brackets "}}" closes two dicts and not the tag: {{ {"a": {}} }}.
      if (IsSpace(c)) {
        AdvanceTo(at_ + 1);
      } else if (brackets == 0 && (absl::StartsWith(rest, close) || with_sign)) {
        trim_blanks_ = with_sign && c == '-';
        trim_newline_ = !print && !(with_sign && c == '+');
        AdvanceTo(at_ + close.size() + (with_sign ? 1 : 0));
        Add(print ? Token::Kind::kClosePrint : Token::Kind::kCloseBlock);
        return absl::OkStatus();
      } else if (c == '"' || c == '\'') {
        SYNCOPATE_RETURN_IF_ERROR(String(c));
      } else if (IsDigit(c)) {
        Number(rest);
      } else if (IsNameStart(c)) {
        const size_t length =
            static_cast<size_t>(std::find_if_not(rest.begin(), rest.end(), IsNamePart) - rest.begin());
        Add(Token::Kind::kName, std::string(rest.substr(0, length)));
        AdvanceTo(at_ + length);
      } else {
        SYNCOPATE_RETURN_IF_ERROR(Operator(rest, &brackets));
      }
    }
    return Refuse("a tag without end");
  }

  void Number(absl::string_view rest) {
    std::string digits;
    bool point = false, exponent = false;
    size_t i = 0;
    const auto digit_at = [rest](size_t at) { return at < rest.size() && IsDigit(rest[at]); };
    for (; i < rest.size(); ++i) {
      const char c = rest[i];
      const bool is_sign = i + 1 < rest.size() && (rest[i + 1] == '+' || rest[i + 1] == '-');
      // A point belongs to a number only before a digit: `a.0.b` has attributes and no float.
      if (c == '.' && !point && !exponent && digit_at(i + 1)) {
        point = true;
      } else if ((c == 'e' || c == 'E') && !exponent && (digit_at(i + 1) || (is_sign && digit_at(i + 2)))) {
        exponent = true;
        digits += c;
        if (!is_sign) continue;
        ++i;
      } else if (c != '_' && !IsDigit(c)) {
        break;
      }
      if (rest[i] != '_') digits += rest[i];
    }
    Add(point || exponent ? Token::Kind::kFloat : Token::Kind::kInteger, std::move(digits));
    AdvanceTo(at_ + i);
  }

  absl::Status Operator(absl::string_view rest, int* brackets) {
    // Longer operators come first.
    static constexpr absl::string_view kOperators[] = {"**", "//", "==", "!=", "<=", ">=", "+", "-", "*",
                                                       "/",  "%",  "~",  "<",  ">",  "=",  "(", ")", "[",
                                                       "]",  "{",  "}",  ",",  ":",  ".",  "|"};
    for (const absl::string_view op : kOperators) {
      if (!absl::StartsWith(rest, op)) continue;
      if (op == "(" || op == "[" || op == "{") ++*brackets;
      if (op == ")" || op == "]" || op == "}") --*brackets;
      Add(Token::Kind::kOperator, std::string(op));
      AdvanceTo(at_ + op.size());
      return absl::OkStatus();
    }
    return Refuse(absl::StrCat("an unexpected '", CharacterText(rest), "'"));
  }

  static std::string CharacterText(absl::string_view rest) {
    return std::string(rest.substr(0, DecodeCodePoint(rest, 0).bytes));
  }

  absl::Status String(char quote) {
    std::string text;
    size_t i = at_ + 1;
    for (; i < source_.size() && source_[i] != quote; ++i) {
      if (source_[i] != '\\') {
        text += source_[i];
      } else {
        SYNCOPATE_RETURN_IF_ERROR(Escape(&i, &text));
      }
    }
    if (i >= source_.size()) return Refuse("a string without end");
    Add(Token::Kind::kString, std::move(text));
    AdvanceTo(i + 1);
    return absl::OkStatus();
  }

  // *at is the index of the backslash; on return it is that of the escape's last character.
  absl::Status Escape(size_t* at, std::string* text) {
    static constexpr char kLetters[] = "ntrbfva\\'\"", kMeant[] = "\n\t\r\b\f\v\a\\'\"";
    const char letter = CharAt(++*at);
    const char* found = letter != '\0' ? std::strchr(kLetters, letter) : nullptr;
    if (found != nullptr) {
      text->push_back(kMeant[found - kLetters]);
    } else if (letter == 'x' || letter == 'u' || letter == 'U') {
      return HexEscape(letter == 'x' ? 2 : letter == 'u' ? 4 : 8, at, text);
    } else if (IsDigit(letter) || letter == 'N') {
      return Refuse("an escape by octal number or by name is not supported");
    } else if (letter != '\n') {  // a backslash at the end of a line joins it with the next
      text->push_back('\\');
      --*at;
      if (letter != '\0') text->push_back(source_[++*at]);
    }
    return absl::OkStatus();
  }

  absl::Status HexEscape(int digits, size_t* at, std::string* text) {
    char32_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const char digit = CharAt(++*at);
      if (std::isxdigit(static_cast<uint8_t>(digit)) == 0) return Refuse("a bad hexadecimal escape");
      value = value * 16 + static_cast<char32_t>(IsDigit(digit) ? digit - '0' : (digit | 0x20) - 'a' + 10);
    }
    if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) return Refuse("an escape that is no character");
    AppendUtf8(value, text);
    return absl::OkStatus();
  }

  std::string source_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int line_ = 1;
  bool trim_blanks_ = false, trim_newline_ = false;  // what the last tag removes from the text after it
};

}  // namespace

absl::Status BadTemplate(int line, absl::string_view what) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_TEMPLATE",
               absl::StrCat("chat template, line ", line, ": ", what));
}

absl::StatusOr<std::vector<Token>> GetTokens(absl::string_view source) { return Lexer(source).Run(); }

}  // namespace syncopate::text::chat
