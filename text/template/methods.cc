#include "text/template/filters_and_methods.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "text/template/python_text.h"

namespace syncopate::text::chat {
namespace {

using Method = Value (*)(const Value& self, const Arguments& arguments, RenderBudget* budget);

struct NamedMethod {
  absl::string_view name;
  Method call;
};

// A positional argument that must be a string.
const std::string& StringAt(const Arguments& arguments, size_t place, RenderBudget* budget) {
  static const std::string* const empty = new std::string;
  if (place < arguments.positional.size() && arguments.positional[place].Is(Value::Kind::kString)) {
    return arguments.positional[place].text();
  }
  budget->Fail("a method of a string needs a string");
  return *empty;
}

// startswith and endswith take one string or a tuple of them.
template <typename Match>
Value AnyAffix(const Arguments& arguments, RenderBudget* budget, const Match& match) {
  const Value* first = arguments.Get(0, "");
  if (arguments.positional.size() != 1) budget->Fail("startswith and endswith take one argument here");
  if (first != nullptr && first->Is(Value::Kind::kTuple)) {
    return Value::Bool(std::any_of(first->list().begin(), first->list().end(),
                                   [&](const Value& affix) { return match(affix.text()); }));
  }
  return Value::Bool(match(StringAt(arguments, 0, budget)));
}

Value Stripped(const Value& self, const Arguments& arguments, bool left, bool right, RenderBudget* budget) {
  budget->TakeBytes(static_cast<int64_t>(self.text().size()));
  return Value::String(Strip(self.text(), arguments.Get(0, ""), left, right));
}

Value SplitAt(const Value& self, const Arguments& arguments, bool from_right, RenderBudget* budget) {
  return Value::OfList(
      Split(self.text(), arguments.Get(0, "sep"), arguments.Int(1, "maxsplit", -1), from_right, budget), budget);
}

Value Cased(const Value& self, LetterCase letter_case, RenderBudget* budget) {
  return Value::String(WithCase(self.text(), letter_case, budget));
}

Value Count(const Value& self, const Arguments& arguments, RenderBudget* budget) {
  const std::string& part = StringAt(arguments, 0, budget);
  // Python counts the places between characters for an empty string; the search below would not end.
  if (part.empty()) budget->Fail("count of an empty string is not supported");
  int64_t count = 0;
  for (size_t at = 0; budget->ok() && (at = self.text().find(part, at)) != std::string::npos; at += part.size())
    ++count;
  budget->TakeSteps(static_cast<int64_t>(self.text().size()) / 1024);
  return Value::Int(count);
}

Value FindIn(const Value& self, const Arguments& arguments, RenderBudget* budget) {
  const size_t at = self.text().find(StringAt(arguments, 0, budget));
  // Python counts characters, not bytes.
  return Value::Int(at == std::string::npos ? -1 : CharactersIn(absl::string_view(self.text()).substr(0, at)));
}

// Methods that chat templates of published models call, and similar ones. Unsupported arguments are refused: a method
// that does almost what Python does would give other tokens.
constexpr NamedMethod kOfStrings[] = {
    {"strip", [](const Value& s, const Arguments& a, RenderBudget* b) { return Stripped(s, a, true, true, b); }},
    {"lstrip", [](const Value& s, const Arguments& a, RenderBudget* b) { return Stripped(s, a, true, false, b); }},
    {"rstrip", [](const Value& s, const Arguments& a, RenderBudget* b) { return Stripped(s, a, false, true, b); }},
    {"split", [](const Value& s, const Arguments& a, RenderBudget* b) { return SplitAt(s, a, false, b); }},
    {"rsplit", [](const Value& s, const Arguments& a, RenderBudget* b) { return SplitAt(s, a, true, b); }},
    {"splitlines",
     [](const Value& s, const Arguments& a, RenderBudget* b) {
       if (!a.positional.empty() || !a.named.empty()) b->Fail("splitlines takes no argument here");
       return Value::OfList(SplitLines(s.text(), b), b);
     }},
    {"startswith",
     [](const Value& s, const Arguments& a, RenderBudget* b) {
       return AnyAffix(a, b, [&](const std::string& affix) { return absl::StartsWith(s.text(), affix); });
     }},
    {"endswith",
     [](const Value& s, const Arguments& a, RenderBudget* b) {
       return AnyAffix(a, b, [&](const std::string& affix) { return absl::EndsWith(s.text(), affix); });
     }},
    {"replace",
     [](const Value& s, const Arguments& a, RenderBudget* b) {
       return Value::String(Replace(s.text(), StringAt(a, 0, b), StringAt(a, 1, b), a.Int(2, "count", -1), b));
     }},
    {"upper", [](const Value& s, const Arguments&, RenderBudget* b) { return Cased(s, LetterCase::kUpper, b); }},
    {"lower", [](const Value& s, const Arguments&, RenderBudget* b) { return Cased(s, LetterCase::kLower, b); }},
    {"title", [](const Value& s, const Arguments&, RenderBudget* b) { return Cased(s, LetterCase::kTitle, b); }},
    {"capitalize",
     [](const Value& s, const Arguments&, RenderBudget* b) { return Cased(s, LetterCase::kCapitalized, b); }},
    {"removeprefix",
     [](const Value& s, const Arguments& a, RenderBudget* b) {
       const std::string& affix = StringAt(a, 0, b);
       return absl::StartsWith(s.text(), affix) ? Value::String(s.text().substr(affix.size())) : s;
     }},
    {"removesuffix",
     [](const Value& s, const Arguments& a, RenderBudget* b) {
       const std::string& affix = StringAt(a, 0, b);
       return absl::EndsWith(s.text(), affix) ? Value::String(s.text().substr(0, s.text().size() - affix.size())) : s;
     }},
    {"isdigit",
     [](const Value& s, const Arguments&, RenderBudget*) {
       return Value::Bool(!s.text().empty() &&
                          std::all_of(s.text().begin(), s.text().end(), [](char c) { return c >= '0' && c <= '9'; }));
     }},
    {"find", FindIn},
    {"count", Count},
    {"join",
     [](const Value& s, const Arguments& a, RenderBudget* b) {
       if (a.positional.size() != 1) b->Fail("join needs a list");
       return b->ok() ? Join(a.positional[0], s.text(), b) : Value();
     }},
};

constexpr NamedMethod kOfDicts[] = {
    {"items", [](const Value& s, const Arguments&, RenderBudget* b) { return Value::OfList(MakePairs(s, b), b); }},
    {"keys", [](const Value& s, const Arguments&, RenderBudget* b) { return Value::OfList(MakeItems(s, b), b); }},
    {"values",
     [](const Value& s, const Arguments&, RenderBudget* b) {
       List values;
       for (const auto& entry : s.dict()) values.push_back(entry.second);
       return Value::OfList(std::move(values), b);
     }},
    {"get",
     [](const Value& s, const Arguments& a, RenderBudget* b) {
       const Value* key = a.Get(0, "");
       // All keys are strings, as in JSON, so a key of another kind is never found.
       const Value* found = key != nullptr && key->Is(Value::Kind::kString) ? s.Find(key->text(), b) : nullptr;
       if (found != nullptr) return *found;
       return a.positional.size() > 1 ? a.positional[1] : Value::None();
     }},
};

template <size_t N>
Method FindMethod(const NamedMethod (&methods)[N], absl::string_view name) {
  for (const NamedMethod& method : methods) {
    if (method.name == name) return method.call;
  }
  return nullptr;
}

Method GetMethod(const Value& self, absl::string_view name) {
  if (self.Is(Value::Kind::kString)) return FindMethod(kOfStrings, name);
  if (self.Is(Value::Kind::kDict)) return FindMethod(kOfDicts, name);
  return nullptr;
}

}  // namespace

// Used by the parser, which does not know the value yet.
bool IsMethod(absl::string_view name) {
  return FindMethod(kOfStrings, name) != nullptr || FindMethod(kOfDicts, name) != nullptr;
}

bool HasMethod(const Value& self, absl::string_view name) { return GetMethod(self, name) != nullptr; }

Value CallMethod(const Value& self, absl::string_view name, const Arguments& arguments, RenderBudget* budget) {
  return GetMethod(self, name)(self, arguments, budget);
}

Value Join(const Value& value, absl::string_view separator, RenderBudget* budget) {
  std::string out;
  bool first = true;
  for (const Value& item : MakeItems(value, budget)) {
    const std::string text = PythonStr(item, budget);
    // Counted before it is appended: a short template can join a long list of long strings.
    if (!budget->TakeBytes(static_cast<int64_t>(text.size() + separator.size()))) break;
    if (!first) out.append(separator.data(), separator.size());
    out += text;
    first = false;
  }
  return Value::String(std::move(out));
}

}  // namespace syncopate::text::chat
