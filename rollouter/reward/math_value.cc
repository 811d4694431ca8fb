#include "rollouter/reward/math_value.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace syncopate::rollouter {
namespace {

constexpr int kMaxDepth = 24;
constexpr int kMaxDigits = 36;

// value   = item {"," item}                       item  = group | sum ["%"] | ["-"|"+"] "\infty"
// group   = ("(" | "[") value (")" | "]") | "\{" value "\}"
// sum     = ["-"|"+"] product {("+"|"-") product}  product = power {("*"|"/"|nothing) power}
// power   = atom ["^" (digit | "{" sum "}")]       atom  = number | fraction | root | "\pi" | "(" sum ")" | "{" sum "}"
// Every method returns none at the first character that does not fit the grammar.
class MathParser {
 public:
  explicit MathParser(absl::string_view text) : text_(text) {}

  std::optional<MathValue> Parse() {
    std::optional<MathValue> value = List();
    if (!value.has_value() || at_ != text_.size()) return std::nullopt;
    return value;
  }

 private:
  struct Factor {
    MathNumber number;
    bool whole = false;  // a plain integer literal, which can begin a mixed number
  };

  bool Eat(absl::string_view word) {
    if (!absl::StartsWith(text_.substr(at_), word)) return false;
    at_ += word.size();
    // A command name ends at the first character that is not a letter.
    const bool command = word[0] == '\\' && absl::ascii_isalpha(static_cast<unsigned char>(word.back()));
    if (command && absl::ascii_isalpha(static_cast<unsigned char>(Peek()))) {
      at_ -= word.size();
      return false;
    }
    if (command && Peek() == ' ') ++at_;
    return true;
  }
  char Peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  std::optional<MathValue> List() {
    std::optional<MathValue> first = Item();
    if (!first.has_value() || Peek() != ',') return first;
    MathValue list;
    list.kind = MathValue::Kind::kList;
    list.items.push_back(*std::move(first));
    while (Eat(",")) {
      std::optional<MathValue> next = Item();
      if (!next.has_value()) return std::nullopt;
      list.items.push_back(*std::move(next));
    }
    return list;
  }

  std::optional<MathValue> Item() {
    const size_t begin = at_;
    const int depth = depth_;
    if (std::optional<MathValue> group = Group(); group.has_value()) return group;
    at_ = begin;
    depth_ = depth;
    if (std::optional<MathValue> infinity = Infinity(); infinity.has_value()) return infinity;
    at_ = begin;
    decimal_ = false;
    std::optional<MathNumber> number = Sum();
    if (!number.has_value()) return std::nullopt;
    MathValue value;
    value.number = *std::move(number);
    value.decimal = decimal_;
    value.percent = Eat("%");
    return value;
  }

  std::optional<MathValue> Infinity() {
    MathValue value;
    value.kind = MathValue::Kind::kInfinity;
    value.negative = Eat("-");
    if (!value.negative) Eat("+");
    if (!Eat("\\infty")) return std::nullopt;
    return value;
  }

  // Parses a group only if it is a whole item: "(1)+2" and "(1)" are numbers.
  std::optional<MathValue> Group() {
    MathValue group;
    const bool set = Eat("\\{");
    group.open = set ? '{' : Peek();
    if (!set && group.open != '(' && group.open != '[') return std::nullopt;
    if (!set) ++at_;
    if (++depth_ > kMaxDepth) return std::nullopt;
    std::optional<MathValue> inner = List();
    --depth_;
    if (!inner.has_value()) return std::nullopt;
    group.close = set ? '}' : Peek();
    if (set ? !Eat("\\}") : (group.close != ')' && group.close != ']')) return std::nullopt;
    if (!set) ++at_;
    const char next = Peek();
    if (next != '\0' && next != ',' && next != ')' && next != ']' && !absl::StartsWith(text_.substr(at_), "\\}")) {
      return std::nullopt;
    }
    if (inner->kind == MathValue::Kind::kList) {
      group.items = std::move(inner->items);
    } else {
      if (!set) return std::nullopt;
      group.items.push_back(*std::move(inner));
    }
    group.kind = set ? MathValue::Kind::kSet : MathValue::Kind::kBracketed;
    return group;
  }

  std::optional<MathNumber> Sum() {
    if (++depth_ > kMaxDepth) return std::nullopt;
    bool minus = Eat("-");
    if (!minus) Eat("+");
    MathNumber sum;
    while (true) {
      const std::optional<MathNumber> term = Product();
      const std::optional<MathNumber> next =
          term.has_value() ? sum.Plus(minus ? term->Negated() : *term) : std::nullopt;
      if (!next.has_value()) return std::nullopt;
      sum = *next;
      if (Eat("+")) {
        minus = false;
      } else if (Eat("-")) {
        minus = true;
      } else {
        break;
      }
    }
    --depth_;
    return sum;
  }

  bool AtomBegins() const {
    const char c = Peek();
    return c == '(' || c == '\\' ? !absl::StartsWith(text_.substr(at_), "\\}") : false;
  }

  std::optional<MathNumber> Product() {
    const std::optional<Factor> first = Power();
    if (!first.has_value()) return std::nullopt;
    MathNumber product = first->number;
    bool whole = first->whole;
    bool divided = false;
    while (true) {
      const bool times = Eat("*");
      const bool over = !times && Eat("/");
      if (!times && !over && !AtomBegins()) return product;
      // A product behind a quotient is ambiguous: 1/2\pi.
      if (!times && !over && divided) return std::nullopt;
      const bool mixed = !times && !over && whole && absl::StartsWith(text_.substr(at_), "\\frac");
      if (mixed) return MixedNumber(product);
      const std::optional<Factor> factor = Power();
      if (!factor.has_value()) return std::nullopt;
      const std::optional<MathNumber> by = over ? factor->number.Inverse() : factor->number;
      const std::optional<MathNumber> next = by.has_value() ? product.Times(*by) : std::nullopt;
      if (!next.has_value()) return std::nullopt;
      product = *next;
      divided = divided || over;
      whole = false;
    }
  }

  // 1\frac{1}{2} is 3/2. Returns none if the fraction is not between 0 and 1, or if a factor follows: the text could
  // then be a product.
  std::optional<MathNumber> MixedNumber(const MathNumber& whole) {
    const std::optional<Factor> fraction = Power();
    const std::optional<Rational> part = fraction.has_value() ? fraction->number.AsRational() : std::nullopt;
    if (!part.has_value() || part->numerator() <= 0 || part->numerator() >= part->denominator()) return std::nullopt;
    if (AtomBegins() || Peek() == '*' || Peek() == '/') return std::nullopt;
    return whole.Plus(fraction->number);
  }

  std::optional<Factor> Power() {
    std::optional<Factor> base = Atom();
    if (!base.has_value() || !Eat("^")) return base;
    std::optional<MathNumber> exponent;
    if (Eat("{")) {
      exponent = Sum();
      if (!Eat("}")) return std::nullopt;
    } else if (IsDigit(Peek())) {  // LaTeX reads x^12 as x^1 times 2
      exponent = MathNumber(Rational(text_[at_++] - '0'));
      if (IsDigit(Peek())) return std::nullopt;
    }
    const std::optional<Rational> rational = exponent.has_value() ? exponent->AsRational() : std::nullopt;
    const std::optional<MathNumber> power = rational.has_value() ? base->number.Power(*rational) : std::nullopt;
    if (!power.has_value() || Peek() == '^') return std::nullopt;
    return Factor{.number = *power};
  }

  std::optional<Factor> Atom() {
    if (IsDigit(Peek()) || Peek() == '.') return Literal();
    std::optional<MathNumber> number;
    if (Eat("\\frac")) {
      number = Fraction();
    } else if (Eat("\\sqrt")) {
      number = Root();
    } else if (Eat("\\pi")) {
      number = MathNumber::Pi();
    } else if (Eat("(")) {
      number = Sum();
      if (!Eat(")")) return std::nullopt;
    } else if (Eat("{")) {
      number = Sum();
      if (!Eat("}")) return std::nullopt;
    }
    return number.has_value() ? std::optional<Factor>(Factor{.number = *number}) : std::nullopt;
  }

  std::optional<Factor> Literal() {
    Int128 digits = 0, scale = 1;
    int count = 0;
    bool point = false;
    for (; IsDigit(Peek()) || (Peek() == '.' && !point); ++at_) {
      if (Peek() == '.') {
        point = true;
        continue;
      }
      if (++count > kMaxDigits) return std::nullopt;
      digits = digits * 10 + (Peek() - '0');
      if (point) scale *= 10;
    }
    // A literal such as 000 is rather the end of a number with commas than 0.
    if (!point && count > 2 && text_[at_ - static_cast<size_t>(count)] == '0') return std::nullopt;
    // A blank or a point behind a number begins a second number.
    if (count == 0 || Peek() == ' ' || Peek() == '.') return std::nullopt;
    const std::optional<Rational> value = Rational::Make(digits, scale);
    if (!value.has_value()) return std::nullopt;
    decimal_ = decimal_ || point;
    return Factor{.number = MathNumber(*value), .whole = !point};
  }

  // Parses the argument of a command: a group, one digit, or \pi.
  std::optional<MathNumber> Argument() {
    if (Eat("{")) {
      std::optional<MathNumber> number = Sum();
      return Eat("}") ? number : std::nullopt;
    }
    if (!IsDigit(Peek())) return Eat("\\pi") ? std::optional<MathNumber>(MathNumber::Pi()) : std::nullopt;
    return MathNumber(Rational(text_[at_++] - '0'));
  }

  std::optional<MathNumber> Fraction() {
    const std::optional<MathNumber> above = Argument();
    const std::optional<MathNumber> below = above.has_value() ? Argument() : std::nullopt;
    const std::optional<MathNumber> inverse = below.has_value() ? below->Inverse() : std::nullopt;
    return inverse.has_value() ? above->Times(*inverse) : std::nullopt;
  }

  std::optional<MathNumber> Root() {
    int64_t degree = 2;
    if (Eat("[")) {
      if (!IsDigit(Peek())) return std::nullopt;
      degree = text_[at_++] - '0';
      if (!Eat("]")) return std::nullopt;
    }
    const std::optional<MathNumber> under = Argument();
    return under.has_value() ? under->Root(degree) : std::nullopt;
  }

  const absl::string_view text_;
  size_t at_ = 0;
  int depth_ = 0;
  bool decimal_ = false;  // whether the current item has a decimal point
};

}  // namespace

std::optional<MathValue> ParseMath(absl::string_view normalized) {
  if (normalized.empty() || normalized.size() > kMaxMathBytes) return std::nullopt;
  return MathParser(normalized).Parse();
}

}  // namespace syncopate::rollouter
