// Arithmetic of Python on values. Whole numbers have 64 bits, and an overflow is an error; division rounds as in
// Python.
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "text/template/python_text.h"
#include "text/template/value.h"

namespace syncopate::text::chat {
namespace {

Value Overflow(RenderBudget* budget) {
  budget->Fail("a whole number beyond 64 bits is not supported");
  return Value();
}

Value Power(int64_t base, int64_t exponent, RenderBudget* budget) {
  if (exponent < 0) return Value::Float(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  int64_t result = 1;
  for (int64_t i = 0; i < exponent && budget->TakeSteps(); ++i) {
    if (__builtin_mul_overflow(result, base, &result)) return Overflow(budget);
    // The result does not change any more, however large the exponent is.
    if (result == 0 || (result == 1 && base == 1)) break;
  }
  return Value::Int(result);
}

Value OfWhole(absl::string_view op, int64_t a, int64_t b, RenderBudget* budget) {
  int64_t result = 0;
  if (op == "+") return __builtin_add_overflow(a, b, &result) ? Overflow(budget) : Value::Int(result);
  if (op == "-") return __builtin_sub_overflow(a, b, &result) ? Overflow(budget) : Value::Int(result);
  if (op == "*") return __builtin_mul_overflow(a, b, &result) ? Overflow(budget) : Value::Int(result);
  if (op == "/") return Value::Float(static_cast<double>(a) / static_cast<double>(b));
  if (op == "**") return Power(a, b, budget);
  if (b == -1) return op == "%" ? Value::Int(0) : OfWhole("-", 0, a, budget);  // INT64_MIN / -1 overflows in C++
  // Python rounds down, C++ towards 0: the results differ if the signs of a and b do.
  const bool rounds_up = a % b != 0 && (a < 0) != (b < 0);
  if (op == "//") return Value::Int(a / b - (rounds_up ? 1 : 0));
  return Value::Int(a % b + (rounds_up ? b : 0));
}

Value OfReal(absl::string_view op, double a, double b) {
  if (op == "+") return Value::Float(a + b);
  if (op == "-") return Value::Float(a - b);
  if (op == "*") return Value::Float(a * b);
  if (op == "/") return Value::Float(a / b);
  if (op == "//") return Value::Float(std::floor(a / b));
  if (op == "%") return Value::Float(a - b * std::floor(a / b));
  return Value::Float(std::pow(a, b));
}

Value Joined(const std::string& a, const std::string& b, RenderBudget* budget) {
  if (!budget->TakeBytes(static_cast<int64_t>(a.size() + b.size()))) return Value();
  return Value::String(a + b);
}

Value Repeated(const std::string& text, int64_t times, RenderBudget* budget) {
  int64_t bytes = 0;
  if (times <= 0 || text.empty()) return Value::String("");
  if (__builtin_mul_overflow(static_cast<int64_t>(text.size()), times, &bytes))
    budget->Exhaust("it makes too much text");
  if (!budget->TakeBytes(bytes)) return Value();
  std::string out;
  for (int64_t i = 0; i < times; ++i) out += text;
  return Value::String(std::move(out));
}

}  // namespace

Value Binary(absl::string_view op, const Value& a, const Value& b, RenderBudget* budget) {
  if (op == "==") return Value::Bool(Equal(a, b, budget));
  if (op == "!=") return Value::Bool(!Equal(a, b, budget));
  if (op == "in" || op == "not in") return Value::Bool(Contains(b, a, budget) == (op == "in"));
  if (op == "~") return Joined(PythonStr(a, budget), PythonStr(b, budget), budget);
  for (const Value* operand : {&a, &b}) {
    if (operand->Is(Value::Kind::kUndefined)) budget->Fail(absl::StrCat("'", operand->text(), "' is undefined"));
  }
  if (!budget->ok()) return Value();
  if (op == "<") return Value::Bool(Compare(a, b, budget) < 0);
  if (op == "<=") return Value::Bool(Compare(a, b, budget) <= 0);
  if (op == ">") return Value::Bool(Compare(a, b, budget) > 0);
  if (op == ">=") return Value::Bool(Compare(a, b, budget) >= 0);
  const bool texts = a.Is(Value::Kind::kString) && b.Is(Value::Kind::kString);
  if (op == "+" && texts) return Joined(a.text(), b.text(), budget);
  if (op == "+" && a.is_list() && a.kind() == b.kind()) {
    List items = a.list();
    items.insert(items.end(), b.list().begin(), b.list().end());
    return Value::OfList(std::move(items), budget, a.kind());
  }
  if (op == "*" && a.Is(Value::Kind::kString) && b.is_whole()) return Repeated(a.text(), b.whole(), budget);
  if (op == "*" && b.Is(Value::Kind::kString) && a.is_whole()) return Repeated(b.text(), a.whole(), budget);
  if (!a.is_number() || !b.is_number()) {
    budget->Fail(absl::StrCat("the operator ", op, " between values that do not fit"));
    return Value();
  }
  if ((op == "/" || op == "//" || op == "%") && b.number() == 0) {
    budget->Fail("division by zero");
    return Value();
  }
  if (a.is_whole() && b.is_whole()) return OfWhole(op, a.whole(), b.whole(), budget);
  return OfReal(op, a.number(), b.number());
}

Value Negative(const Value& value, RenderBudget* budget) {
  if (value.Is(Value::Kind::kFloat)) return Value::Float(-value.number());
  return OfWhole("-", 0, value.whole(), budget);
}

}  // namespace syncopate::text::chat
