#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "text/template/budget.h"

namespace syncopate::text::chat {

class Value;
using List = std::vector<Value>;
using Dict = std::vector<std::pair<std::string, Value>>;  // in the order of insertion, as in Python

// What the renderer can call: a macro, a function of the language, or a method with what it belongs to.
struct Function;

// A value as Python has it. Immutable, but for namespaces; copies share what is large.
//
// Lists and mappings hold neither functions nor namespaces: so values have no cycles, and no function outlives the
// names that it sees.
class Value {
 public:
  enum class Kind { kUndefined, kNone, kBool, kInt, kFloat, kString, kList, kTuple, kDict, kNamespace, kFunction };

  // Undefined: what a name that nothing has been given stands for.
  Value() = default;
  static Value Undefined(std::string name);
  static Value None();
  static Value Bool(bool value);
  static Value Int(int64_t value);
  static Value Float(double value);
  static Value String(std::string value);
  // `kind` is kList or kTuple. Fails where it gets too deep or holds what it may not.
  static Value OfList(List items, RenderBudget* budget, Kind kind = Kind::kList);
  // `kind` is kDict or kNamespace. A key that comes twice counts with its last value.
  static Value OfDict(Dict entries, RenderBudget* budget, Kind kind = Kind::kDict);
  static Value OfFunction(std::shared_ptr<const Function> function);
  // Whole numbers beyond 64 bits fail.
  static Value FromJson(const nlohmann::ordered_json& json, RenderBudget* budget);

  Kind kind() const { return kind_; }
  bool Is(Kind kind) const { return kind_ == kind; }
  bool is_list() const { return kind_ == Kind::kList || kind_ == Kind::kTuple; }
  bool is_whole() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }
  bool is_number() const { return is_whole() || kind_ == Kind::kFloat; }

  int64_t whole() const { return whole_; }  // of kInt and kBool
  double number() const { return kind_ == Kind::kFloat ? real_ : static_cast<double>(whole_); }
  // Of kString; of an undefined value its name; else "".
  const std::string& text() const;
  const List& list() const;          // of lists and tuples, else empty
  const Dict& dict() const;          // of mappings and namespaces, else empty
  const Function& function() const;  // of kFunction
  std::shared_ptr<const Function> shared_function() const;

  // What `if` makes of it.
  bool Truth() const;
  // Of a mapping; null if it has no such key. Takes steps by its size.
  const Value* Find(absl::string_view key, RenderBudget* budget) const;
  // Of a namespace.
  void Assign(absl::string_view key, Value value, RenderBudget* budget);

 private:
  struct ListData {
    List items;
    int depth = 1;
  };
  struct DictData {
    Dict entries;
    int depth = 1;
  };

  int depth() const;
  // Whether lists and mappings may hold it, and how deep it is.
  static int DepthWith(const Value& value, int depth, RenderBudget* budget);

  Kind kind_ = Kind::kUndefined;
  union {
    int64_t whole_ = 0;
    double real_;
  };
  std::shared_ptr<void> data_;  // std::string, ListData, DictData or Function, by the kind
};

struct Arguments {
  List positional;
  Dict named;

  // By place or by name; null if it was not given.
  const Value* Get(size_t place, absl::string_view name) const;
  int64_t Int(size_t place, absl::string_view name, int64_t otherwise) const;
  std::string Text(size_t place, absl::string_view name, absl::string_view otherwise) const;
  bool Flag(size_t place, absl::string_view name, bool otherwise) const;
};

// Operators of Python on values. Each fails where Python raises.
bool Equal(const Value& a, const Value& b, RenderBudget* budget);
// Below 0, 0, above 0.
int Compare(const Value& a, const Value& b, RenderBudget* budget);
bool Contains(const Value& whole, const Value& part, RenderBudget* budget);
Value Binary(absl::string_view op, const Value& a, const Value& b, RenderBudget* budget);
Value Negative(const Value& value, RenderBudget* budget);

// What a loop over the value goes through: elements, keys or characters.
List ItemsOf(const Value& value, RenderBudget* budget);
// (key, value) tuples of a mapping.
List PairsOf(const Value& value, RenderBudget* budget);
int64_t LengthOf(const Value& value, RenderBudget* budget);
// value[key]; undefined where there is none.
Value ItemOf(const Value& value, const Value& key, RenderBudget* budget);
// value[begin:end:step]; null where a bound is not given.
Value SliceOf(const Value& value, const Value* begin, const Value* end, const Value* step, RenderBudget* budget);

}  // namespace syncopate::text::chat
