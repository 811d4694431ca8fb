#include "text/template/filters_and_methods.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "text/template/python_text.h"

namespace syncopate::text::chat {
namespace {

using ValueKind = Value::Kind;

// An index that no positional argument has: for arguments that are passed by name only.
constexpr size_t kByName = 1000;

Value ToJson(const Value& value, const Arguments& arguments, RenderBudget* budget) {
  JsonStyle style;
  // transformers' signature: tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False).
  style.ascii = arguments.Flag(0, "ensure_ascii", false);
  style.indent = std::min<int64_t>(arguments.Int(1, "indent", -1), 64);
  style.sort_keys = arguments.Flag(3, "sort_keys", false);
  // As in json.dumps, no blank follows a comma at the end of a line.
  if (style.indent >= 0) style.comma = ",";
  const Value* separators = arguments.Get(2, "separators");
  if (separators != nullptr && separators->list().size() == 2) {
    style.comma = separators->list()[0].text();
    style.colon = separators->list()[1].text();
  }
  return Value::String(JsonText(value, style, budget));
}

Value Trim(const Value& value, const Arguments& arguments, RenderBudget* budget) {
  const std::string text = PythonStr(value, budget);
  budget->TakeBytes(static_cast<int64_t>(text.size()));
  return Value::String(Strip(text, arguments.Get(0, "chars"), true, true));
}

Value Length(const Value& value, const Arguments&, RenderBudget* budget) {
  return Value::Int(GetLength(value, budget));
}

Value AsString(const Value& value, const Arguments&, RenderBudget* budget) {
  return Value::String(PythonStr(value, budget));
}

Value First(const Value& value, const Arguments&, RenderBudget* budget) {
  const List items = MakeItems(value, budget);
  return items.empty() ? Value::Undefined("first") : items.front();
}

Value Last(const Value& value, const Arguments&, RenderBudget* budget) {
  const List items = MakeItems(value, budget);
  return items.empty() ? Value::Undefined("last") : items.back();
}

Value Default(const Value& value, const Arguments& arguments, RenderBudget*) {
  // none is a value: it counts as missing only with boolean=true.
  const bool wanted = value.Is(ValueKind::kUndefined) || (arguments.Flag(1, "boolean", false) && !value.Truth());
  if (!wanted) return value;
  const Value* other = arguments.Get(0, "default_value");
  return other != nullptr ? *other : Value::String("");
}

template <LetterCase letter_case>
Value Cased(const Value& value, const Arguments&, RenderBudget* budget) {
  return Value::String(WithCase(PythonStr(value, budget), letter_case, budget));
}

// Unlike in str.title, a word begins only after a blank, '-' or an opening bracket.
Value Title(const Value& value, const Arguments&, RenderBudget* budget) {
  std::string text = WithCase(PythonStr(value, budget), LetterCase::kLower, budget);
  bool begins = true;
  for (char& c : text) {
    if (begins) c = absl::ascii_toupper(static_cast<uint8_t>(c));
    begins =
        absl::ascii_isspace(static_cast<uint8_t>(c)) || absl::string_view("-({[<").find(c) != absl::string_view::npos;
  }
  return Value::String(std::move(text));
}

Value ReplaceIn(const Value& value, const Arguments& arguments, RenderBudget* budget) {
  return Value::String(Replace(PythonStr(value, budget), arguments.Text(0, "old", ""), arguments.Text(1, "new", ""),
                               arguments.Int(2, "count", -1), budget));
}

// The value's attribute "a" or "a.b", or its element with an index.
Value GetAttribute(const Value& value, const Value& path, RenderBudget* budget) {
  if (!path.Is(ValueKind::kString)) return MakeItem(value, path, budget);
  const Value dot = Value::String(".");
  Value found = value;
  for (const Value& part : Split(path.text(), &dot, -1, false, budget)) found = MakeItem(found, part, budget);
  return found;
}

Value JoinItems(const Value& value, const Arguments& arguments, RenderBudget* budget) {
  const std::string separator = arguments.Text(0, "d", "");
  const Value* attribute = arguments.Get(1, "attribute");
  if (attribute == nullptr) return Join(value, separator, budget);
  List parts;
  for (const Value& item : MakeItems(value, budget)) parts.push_back(GetAttribute(item, *attribute, budget));
  return Join(Value::OfList(std::move(parts), budget), separator, budget);
}

Value ToInt(const Value& value, const Arguments& arguments, RenderBudget* budget) {
  // Jinja gives the default for text that is no number, and an error for an undefined name.
  Value otherwise = Value::Int(arguments.Int(0, "default", 0));
  if (value.Is(ValueKind::kUndefined)) budget->Fail(absl::StrCat("'", value.text(), "' is undefined"));
  if (value.is_whole()) return Value::Int(value.whole());
  if (value.Is(ValueKind::kFloat)) {
    // The negated comparison is true of NaN as well; the conversion of either would be undefined.
    if (!(std::fabs(value.number()) < 9.2e18)) budget->Fail("a whole number beyond 64 bits is not supported");
    return budget->ok() ? Value::Int(static_cast<int64_t>(value.number())) : Value();
  }
  int64_t whole = 0;
  double real = 0;
  const std::string text = PythonStr(value, budget);
  if (absl::SimpleAtoi(text, &whole)) return Value::Int(whole);
  // As in Jinja: int(float(text)) if int(text) raises.
  if (absl::SimpleAtod(text, &real) && std::fabs(real) < 9.2e18) return Value::Int(static_cast<int64_t>(real));
  return otherwise;
}

Value ToFloat(const Value& value, const Arguments& arguments, RenderBudget* budget) {
  if (value.is_number()) return Value::Float(value.number());
  double real = 0;
  if (absl::SimpleAtod(PythonStr(value, budget), &real)) return Value::Float(real);
  const Value* otherwise = arguments.Get(0, "default");
  return otherwise != nullptr ? *otherwise : Value::Float(0);
}

Value Absolute(const Value& value, const Arguments&, RenderBudget* budget) {
  if (!value.is_number()) budget->Fail("abs of a value that is no number");
  if (value.Is(ValueKind::kFloat)) return Value::Float(std::fabs(value.number()));
  return value.whole() < 0 ? Negative(value, budget) : Value::Int(value.whole());
}

Value Reversed(const Value& value, const Arguments&, RenderBudget* budget) {
  List items = MakeItems(value, budget);
  std::reverse(items.begin(), items.end());
  if (!value.Is(ValueKind::kString)) return Value::OfList(std::move(items), budget);
  std::string text;
  for (const Value& item : items) text += item.text();
  return Value::String(std::move(text));
}

// The key by which Jinja compares: strings without regard to case, unless case_sensitive is given.
Value SortKey(const Value& item, const Arguments& arguments, RenderBudget* budget) {
  const bool folds = item.Is(ValueKind::kString) && !arguments.Flag(kByName, "case_sensitive", false);
  return folds ? Value::String(WithCase(item.text(), LetterCase::kLower, budget)) : item;
}

// Compares each item with all kept ones, because values have no hash; Equal() counts the steps.
Value Unique(const Value& value, const Arguments& arguments, RenderBudget* budget) {
  List kept, keys;
  for (const Value& item : MakeItems(value, budget)) {
    Value key = SortKey(item, arguments, budget);
    if (std::any_of(keys.begin(), keys.end(), [&](const Value& k) { return Equal(k, key, budget); })) continue;
    keys.push_back(std::move(key));
    kept.push_back(item);
  }
  return Value::OfList(std::move(kept), budget);
}

// Sorts stably by keys. If a comparison fails, the items stay in their order.
List SortedBy(std::vector<std::pair<Value, Value>> keyed, bool reverse, RenderBudget* budget) {
  // Checks first that all keys can be compared: std::stable_sort() with a comparison that fails midway is undefined.
  for (size_t i = 1; i < keyed.size(); ++i) Compare(keyed[0].first, keyed[i].first, budget);
  if (budget->ok()) {
    std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
      const int order = Compare(a.first, b.first, budget);
      return reverse ? order > 0 : order < 0;
    });
  }
  List items;
  for (auto& [key, item] : keyed) items.push_back(std::move(item));
  return items;
}

List Sorted(const Value& value, const Arguments& arguments, bool reverse, RenderBudget* budget) {
  const Value* attribute = arguments.Get(kByName, "attribute");
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : MakeItems(value, budget)) {
    const Value by = attribute != nullptr ? GetAttribute(item, *attribute, budget) : item;
    keyed.emplace_back(SortKey(by, arguments, budget), item);
  }
  return SortedBy(std::move(keyed), reverse, budget);
}

Value Sort(const Value& value, const Arguments& arguments, RenderBudget* budget) {
  if (arguments.positional.size() > 1) budget->Fail("sort takes its arguments by name here");
  return Value::OfList(Sorted(value, arguments, arguments.Flag(0, "reverse", false), budget), budget);
}

Value Smallest(const Value& value, const Arguments& arguments, RenderBudget* budget) {
  const List items = Sorted(value, arguments, false, budget);
  return items.empty() ? Value::Undefined("min") : items.front();
}

// Returns the first of equal items, as Python's max.
Value Largest(const Value& value, const Arguments& arguments, RenderBudget* budget) {
  const List items = Sorted(value, arguments, true, budget);
  return items.empty() ? Value::Undefined("max") : items.front();
}

Value DictSort(const Value& value, const Arguments& arguments, RenderBudget* budget) {
  if (!arguments.positional.empty()) budget->Fail("dictsort takes no positional arguments here");
  if (arguments.Get(kByName, "by") != nullptr) budget->Fail("dictsort with by is not supported");
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& pair : MakePairs(value, budget)) {
    if (pair.list().empty()) break;  // failed
    keyed.emplace_back(SortKey(pair.list()[0], arguments, budget), pair);
  }
  return Value::OfList(SortedBy(std::move(keyed), arguments.Flag(kByName, "reverse", false), budget), budget);
}

Value Indent(const Value& value, const Arguments& arguments, RenderBudget* budget) {
  const std::string text = PythonStr(value, budget);
  const Value* width = arguments.Get(0, "width");
  const bool given = width != nullptr && width->Is(ValueKind::kString);
  // The bound keeps a template from asking for terabytes of blanks.
  const int64_t blanks = std::max<int64_t>(0, std::min<int64_t>(arguments.Int(0, "width", 4), 1024));
  const std::string pad = given ? width->text() : std::string(static_cast<size_t>(blanks), ' ');
  const bool blank_too = arguments.Flag(2, "blank", false);
  std::string out = arguments.Flag(1, "first", false) ? pad : "";
  for (size_t i = 0; i < text.size() && budget->ok(); ++i) {
    out += text[i];
    // Blank lines are not indented, unless `blank` is given.
    const bool line_follows = i + 1 < text.size() && text[i + 1] != '\n';
    if (text[i] == '\n' && (blank_too || line_follows)) {
      out += pad;
      budget->TakeBytes(static_cast<int64_t>(pad.size()));
    }
  }
  budget->TakeBytes(static_cast<int64_t>(text.size()));
  return Value::String(std::move(out));
}

// select, reject, selectattr, rejectattr: keep the elements by a test of the element, or of an attribute of it.
template <bool by_attribute, bool keep>
Value Select(const Value& value, const Arguments& arguments, RenderBudget* budget) {
  constexpr size_t kTestPlace = by_attribute ? 1 : 0;
  if (arguments.positional.size() < kTestPlace) budget->Fail("selectattr and rejectattr need an attribute");
  Test test = nullptr;
  Arguments rest;
  if (arguments.positional.size() > kTestPlace) {
    const std::string name = PythonStr(arguments.positional[kTestPlace], budget);
    test = FindTest(name);
    if (test == nullptr) budget->Fail(absl::StrCat("the test '", name, "' is not supported"));
    rest.positional.assign(arguments.positional.begin() + kTestPlace + 1, arguments.positional.end());
  }
  List kept;
  for (const Value& item : budget->ok() ? MakeItems(value, budget) : List()) {
    const Value subject = by_attribute ? GetAttribute(item, arguments.positional[0], budget) : item;
    const bool passes = test != nullptr ? test(subject, rest, budget) : subject.Truth();
    if (passes == keep) kept.push_back(item);
  }
  return Value::OfList(std::move(kept), budget);
}

Value Map(const Value& value, const Arguments& arguments, RenderBudget* budget) {
  const Value* attribute = arguments.Get(kByName, "attribute");
  const Value* otherwise = arguments.Get(kByName, "default");
  Filter filter = nullptr;
  Arguments rest;
  if (attribute == nullptr) {
    const std::string name = arguments.positional.empty() ? "" : PythonStr(arguments.positional[0], budget);
    // A map within a map could be nested without a bound by its arguments, so it is refused.
    filter = name == "map" ? nullptr : FindFilter(name);
    if (filter == nullptr) budget->Fail(absl::StrCat("map with the filter '", name, "' is not supported"));
    if (!arguments.positional.empty())
      rest.positional.assign(arguments.positional.begin() + 1, arguments.positional.end());
    rest.named = arguments.named;
  }
  List out;
  for (const Value& item : budget->ok() ? MakeItems(value, budget) : List()) {
    Value made = attribute != nullptr ? GetAttribute(item, *attribute, budget) : filter(item, rest, budget);
    if (attribute != nullptr && made.Is(ValueKind::kUndefined) && otherwise != nullptr) made = *otherwise;
    out.push_back(std::move(made));
  }
  return Value::OfList(std::move(out), budget);
}

struct NamedFilter {
  absl::string_view name;
  Filter call;
};

constexpr NamedFilter kFilters[] = {
    {"abs", Absolute},
    {"capitalize", Cased<LetterCase::kCapitalized>},
    {"count", Length},
    {"d", Default},
    {"default", Default},
    {"dictsort", DictSort},
    {"first", First},
    {"float", ToFloat},
    {"indent", Indent},
    {"int", ToInt},
    {"items", [](const Value& v, const Arguments&, RenderBudget* b) { return Value::OfList(MakePairs(v, b), b); }},
    {"join", JoinItems},
    {"last", Last},
    {"length", Length},
    {"list", [](const Value& v, const Arguments&, RenderBudget* b) { return Value::OfList(MakeItems(v, b), b); }},
    {"lower", Cased<LetterCase::kLower>},
    {"map", Map},
    {"max", Largest},
    {"min", Smallest},
    {"reject", Select<false, false>},
    {"rejectattr", Select<true, false>},
    {"replace", ReplaceIn},
    {"reverse", Reversed},
    {"safe", AsString},
    {"select", Select<false, true>},
    {"selectattr", Select<true, true>},
    {"sort", Sort},
    {"string", AsString},
    {"title", Title},
    {"tojson", ToJson},
    {"trim", Trim},
    {"unique", Unique},
    {"upper", Cased<LetterCase::kUpper>},
};

const Value& Other(const Arguments& arguments, RenderBudget* budget) {
  static const Value* const none = new Value;
  if (!arguments.positional.empty()) return arguments.positional[0];
  budget->Fail("a test needs an argument");
  return *none;
}

template <ValueKind kind>
bool IsKind(const Value& value, const Arguments&, RenderBudget*) {
  return value.Is(kind);
}

bool IsSequence(const Value& value, const Arguments&, RenderBudget*) {
  return value.is_list() || value.Is(ValueKind::kDict) || value.Is(ValueKind::kString) ||
         value.Is(ValueKind::kUndefined);
}

bool IsEqual(const Value& value, const Arguments& arguments, RenderBudget* budget) {
  return Equal(value, Other(arguments, budget), budget);
}

// True if the sign of the comparison, -1, 0 or 1, is in [from, to].
template <int from, int to>
bool IsOrdered(const Value& value, const Arguments& arguments, RenderBudget* budget) {
  const int order = Compare(value, Other(arguments, budget), budget);
  const int sign = order < 0 ? -1 : order > 0 ? 1 : 0;
  return sign >= from && sign <= to;
}

int64_t Remainder(const Value& value, int64_t by, RenderBudget* budget) {
  if (!value.is_whole() || by == 0) budget->Fail("odd, even and divisibleby need whole numbers, and not 0");
  // INT64_MIN % -1 overflows in C++; the remainder by -1 is always 0.
  return budget->ok() && by != -1 ? value.whole() % by : 0;
}

struct NamedTest {
  absl::string_view name;
  Test call;
};

constexpr NamedTest kTests[] = {
    {"boolean", IsKind<ValueKind::kBool>},
    {"callable", IsKind<ValueKind::kFunction>},
    {"defined", [](const Value& v, const Arguments&, RenderBudget*) { return !v.Is(ValueKind::kUndefined); }},
    {"divisibleby",
     [](const Value& v, const Arguments& a, RenderBudget* b) {
       return Remainder(v, Other(a, b).is_whole() ? Other(a, b).whole() : 0, b) == 0;
     }},
    {"eq", IsEqual},
    {"equalto", IsEqual},
    {"even", [](const Value& v, const Arguments&, RenderBudget* b) { return Remainder(v, 2, b) == 0; }},
    {"false", [](const Value& v, const Arguments&, RenderBudget*) { return v.Is(ValueKind::kBool) && !v.Truth(); }},
    {"float", IsKind<ValueKind::kFloat>},
    {"ge", IsOrdered<0, 1>},
    {"greaterthan", IsOrdered<1, 1>},
    {"gt", IsOrdered<1, 1>},
    {"in", [](const Value& v, const Arguments& a, RenderBudget* b) { return Contains(Other(a, b), v, b); }},
    {"integer", IsKind<ValueKind::kInt>},
    {"iterable", IsSequence},
    {"le", IsOrdered<-1, 0>},
    {"lessthan", IsOrdered<-1, -1>},
    {"lt", IsOrdered<-1, -1>},
    {"mapping", IsKind<ValueKind::kDict>},
    {"ne", [](const Value& v, const Arguments& a, RenderBudget* b) { return !IsEqual(v, a, b); }},
    {"none", IsKind<ValueKind::kNone>},
    {"number", [](const Value& v, const Arguments&, RenderBudget*) { return v.is_number(); }},
    {"odd", [](const Value& v, const Arguments&, RenderBudget* b) { return Remainder(v, 2, b) != 0; }},
    {"sequence", IsSequence},
    {"string", IsKind<ValueKind::kString>},
    {"true", [](const Value& v, const Arguments&, RenderBudget*) { return v.Is(ValueKind::kBool) && v.Truth(); }},
    {"undefined", IsKind<ValueKind::kUndefined>},
};

}  // namespace

Filter FindFilter(absl::string_view name) {
  for (const NamedFilter& filter : kFilters) {
    if (filter.name == name) return filter.call;
  }
  return nullptr;
}

Test FindTest(absl::string_view name) {
  for (const NamedTest& test : kTests) {
    if (test.name == name) return test.call;
  }
  return nullptr;
}

}  // namespace syncopate::text::chat
