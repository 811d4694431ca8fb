#include "rollouter/environment/calculator.h"

#include <algorithm>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "rollouter/reward/math_number.h"
#include "rollouter/reward/math_verdict.h"
#include "rollouter/reward/reward.h"

namespace syncopate::rollouter {
namespace {

constexpr absl::string_view kCall = "calc:";
constexpr int kMaxDecimals = 12;  // behind the point of a result

absl::Status BadExpression(const std::string& what) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_EXPRESSION", what);
}

absl::StatusOr<Rational> Fits(const std::optional<Rational>& value) {
  if (value.has_value()) return *value;
  return BadExpression("the numbers are too large");
}

// sum = product {("+" | "-") product};  product = factor {("*" | "/") factor};
// factor = "-" factor | "(" sum ")" | number
class ExpressionReader {
 public:
  explicit ExpressionReader(absl::string_view text) : rest_(text) {}

  absl::StatusOr<Rational> ReadAll() {
    SYNCOPATE_ASSIGN_OR_RETURN(const Rational value, ReadSum(0));
    if (Peek() == '\0') return value;
    return BadExpression(absl::StrCat("cannot read '", rest_.substr(0, 20), "'"));
  }

 private:
  // The next character that is no blank; '\0' at the end.
  char Peek() {
    rest_ = absl::StripLeadingAsciiWhitespace(rest_);
    return rest_.empty() ? '\0' : rest_.front();
  }
  bool Take(char wanted) {
    if (Peek() != wanted) return false;
    rest_.remove_prefix(1);
    return true;
  }

  absl::StatusOr<Rational> ReadSum(int depth) {
    SYNCOPATE_ASSIGN_OR_RETURN(Rational sum, ReadProduct(depth));
    while (Peek() == '+' || Peek() == '-') {
      const bool minus = Take('-');
      if (!minus) Take('+');
      SYNCOPATE_ASSIGN_OR_RETURN(const Rational next, ReadProduct(depth));
      SYNCOPATE_ASSIGN_OR_RETURN(const Rational signed_next, Fits(next.Times(Rational(minus ? -1 : 1))));
      SYNCOPATE_ASSIGN_OR_RETURN(sum, Fits(sum.Plus(signed_next)));
    }
    return sum;
  }

  absl::StatusOr<Rational> ReadProduct(int depth) {
    SYNCOPATE_ASSIGN_OR_RETURN(Rational product, ReadFactor(depth));
    while (Peek() == '*' || Peek() == '/') {
      const bool quotient = Take('/');
      if (!quotient) Take('*');
      SYNCOPATE_ASSIGN_OR_RETURN(Rational next, ReadFactor(depth));
      if (quotient && next.IsZero()) return BadExpression("division by zero");
      if (quotient) {
        SYNCOPATE_ASSIGN_OR_RETURN(next, Fits(next.Inverse()));
      }
      SYNCOPATE_ASSIGN_OR_RETURN(product, Fits(product.Times(next)));
    }
    return product;
  }

  absl::StatusOr<Rational> ReadFactor(int depth) {
    if (depth > kMaxExpressionDepth) return BadExpression("too many parentheses");
    if (Take('-')) {
      SYNCOPATE_ASSIGN_OR_RETURN(const Rational value, ReadFactor(depth + 1));
      return Fits(value.Times(Rational(-1)));
    }
    if (!Take('(')) return ReadNumber();
    SYNCOPATE_ASSIGN_OR_RETURN(const Rational value, ReadSum(depth + 1));
    if (!Take(')')) return BadExpression("a parenthesis is not closed");
    return value;
  }

  absl::StatusOr<Rational> ReadNumber() {
    Peek();
    std::optional<Rational> value = Rational(0);
    std::optional<Rational> unit = Rational(1);  // of the last digit behind the point
    bool point = false, digits = false;
    for (; !rest_.empty() && (absl::ascii_isdigit(rest_.front()) || (rest_.front() == '.' && !point));
         rest_.remove_prefix(1)) {
      if (rest_.front() == '.') {
        point = true;
        continue;
      }
      digits = true;
      if (point) unit = unit.has_value() ? unit->Times(Rational(10)) : unit;
      value = value.has_value() ? value->Times(Rational(10)) : value;
      value = value.has_value() ? value->Plus(Rational(rest_.front() - '0')) : value;
    }
    if (!digits) {
      return BadExpression(rest_.empty() ? "a number is missing at the end"
                                         : absl::StrCat("cannot read '", rest_.substr(0, 20), "'"));
    }
    if (!value.has_value() || !unit.has_value()) return BadExpression("the numbers are too large");
    return Fits(value->Times(*unit->Inverse()));
  }

  absl::string_view rest_;
};

std::string ToText(Int128 value) {
  if (value < 0) return absl::StrCat("-", ToText(-value));
  std::string digits;
  do {
    digits += static_cast<char>('0' + static_cast<int>(value % 10));
    value /= 10;
  } while (value > 0);
  std::reverse(digits.begin(), digits.end());
  return digits;
}

std::string ToText(const Rational& value) {
  if (value.IsInteger()) return ToText(value.numerator());
  // The shortest power of ten that makes it an integer, if one is short enough.
  std::optional<Rational> scaled = value;
  for (int decimals = 1; decimals <= kMaxDecimals && scaled.has_value(); ++decimals) {
    scaled = scaled->Times(Rational(10));
    if (!scaled.has_value() || !scaled->IsInteger()) continue;
    std::string digits = ToText(scaled->numerator() < 0 ? -scaled->numerator() : scaled->numerator());
    if (std::ssize(digits) <= decimals) digits.insert(0, static_cast<size_t>(decimals + 1) - digits.size(), '0');
    digits.insert(digits.size() - static_cast<size_t>(decimals), ".");
    return absl::StrCat(scaled->numerator() < 0 ? "-" : "", digits);
  }
  return absl::StrCat(ToText(value.numerator()), "/", ToText(value.denominator()));
}

// The expression of an action's last line, if that calls the calculator.
std::optional<std::string> FindCall(absl::string_view action) {
  action = absl::StripAsciiWhitespace(action);
  const size_t line = action.rfind('\n');
  absl::string_view last = line == absl::string_view::npos ? action : action.substr(line + 1);
  last = absl::StripLeadingAsciiWhitespace(last);
  if (!absl::ConsumePrefix(&last, kCall)) return std::nullopt;
  return std::string(last);
}

class Calculator final : public EnvironmentGame {
 public:
  explicit Calculator(std::string truth) : truth_(std::move(truth)) {}

  absl::Status Reset(uint64_t) override { return absl::OkStatus(); }

  absl::StatusOr<EnvironmentMessage> Step(const std::string& action) override {
    if (const std::optional<std::string> expression = FindCall(action); expression.has_value()) {
      const absl::StatusOr<std::string> value = Calculate(*expression);
      return EnvironmentMessage{.text = value.ok() ? *value : absl::StrCat("error: ", value.status().message())};
    }
    const std::optional<std::string> given = FinalNumber(action);
    const bool right = given.has_value() && SameNumber(truth_, *given);
    return EnvironmentMessage{.text = right ? "right" : "wrong", .reward = right ? 1.0f : 0.0f, .done = true};
  }

 private:
  const std::string truth_;  // as FinalNumber() gives it
};

}  // namespace

absl::StatusOr<std::string> Calculate(absl::string_view expression) {
  if (expression.size() > kMaxExpressionBytes) return BadExpression("the expression is too long");
  SYNCOPATE_ASSIGN_OR_RETURN(const Rational value, ExpressionReader(expression).ReadAll());
  return ToText(value);
}

absl::StatusOr<std::unique_ptr<EnvironmentGame>> MakeCalculator(const std::string& row_json) {
  SYNCOPATE_ASSIGN_OR_RETURN(const RewardRow row, ParseRewardRow(row_json));
  std::optional<std::string> truth = row.has_truth ? FinalNumber(row.truth) : std::nullopt;
  if (truth.has_value()) return std::make_unique<Calculator>(*std::move(truth));
  return Error(absl::StatusCode::kInvalidArgument, "NO_TRUTH",
               "the row has no right number to compare with; data.answer_field names its field");
}

}  // namespace syncopate::rollouter
