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

// What the renderer can call: a macro, a global function, or a method with its value.
struct Function;

// A Python value. Immutable, except for namespaces; copies share large data.
//
// Lists and mappings must not contain functions or namespaces, so that values have no cycles and no function outlives
// the names that it sees.
class Value {
 public:
  enum class Kind { kUndefined, kNone, kBool, kInt, kFloat, kString, kList, kTuple, kDict, kNamespace, kFunction };

  // Undefined: the value of a name that was never set.
  Value() = default;
  static Value Undefined(std::string name);
  static Value None();
  static Value Bool(bool value);
  static Value Int(int64_t value);
  static Value Float(double value);
  static Value String(std::string value);
  // `kind` is kList or kTuple. Fails if the value gets too deep or would contain a function or namespace.
  static Value OfList(List items, RenderBudget* budget, Kind kind = Kind::kList);
  // `kind` is kDict or kNamespace. A key that occurs twice has its last value.
  static Value OfDict(Dict entries, RenderBudget* budget, Kind kind = Kind::kDict);
  static Value OfFunction(std::shared_ptr<const Function> function);
  // Fails for whole numbers beyond 64 bits.
  static Value FromJson(const nlohmann::ordered_json& json, RenderBudget* budget);

  Kind kind() const { return kind_; }
  bool Is(Kind kind) const { return kind_ == kind; }
  bool is_list() const { return kind_ == Kind::kList || kind_ == Kind::kTuple; }
  bool is_whole() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }
  bool is_number() const { return is_whole() || kind_ == Kind::kFloat; }

  int64_t whole() const { return whole_; }  // for kInt and kBool
  double number() const { return kind_ == Kind::kFloat ? real_ : static_cast<double>(whole_); }
  // The text of kString; the name of an undefined value; else "".
  const std::string& text() const;
  const List& list() const;          // for lists and tuples, else empty
  const Dict& dict() const;          // for mappings and namespaces, else empty
  const Function& function() const;  // for kFunction
  std::shared_ptr<const Function> shared_function() const;

  // The value's truth, as `if` takes it.
  bool Truth() const;
  // The value of a mapping's key; null if there is no such key. Takes steps by the mapping's size.
  const Value* Find(absl::string_view key, RenderBudget* budget) const;
  // Sets a key of a namespace.
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
  // The depth of a list or mapping with `value` in it, at least `depth`; fails if `value` may not be in one.
  static int DepthWith(const Value& value, int depth, RenderBudget* budget);

  Kind kind_ = Kind::kUndefined;
  union {
    int64_t whole_ = 0;
    double real_;
  };
  std::shared_ptr<void> data_;  // std::string, ListData, DictData or Function, depending on the kind
};

struct Arguments {
  List positional;
  Dict named;

  // The argument by position or by name; null if it was not given.
  const Value* Get(size_t place, absl::string_view name) const;
  int64_t Int(size_t place, absl::string_view name, int64_t otherwise) const;
  std::string Text(size_t place, absl::string_view name, absl::string_view otherwise) const;
  bool Flag(size_t place, absl::string_view name, bool otherwise) const;
};

// Operators of Python on values. Each fails where Python raises.
bool Equal(const Value& a, const Value& b, RenderBudget* budget);
// Negative if a < b, 0 if they are equal, positive if a > b.
int Compare(const Value& a, const Value& b, RenderBudget* budget);
bool Contains(const Value& whole, const Value& part, RenderBudget* budget);
Value Binary(absl::string_view op, const Value& a, const Value& b, RenderBudget* budget);
Value Negative(const Value& value, RenderBudget* budget);

// The items that a loop over the value visits: elements, keys or characters.
List MakeItems(const Value& value, RenderBudget* budget);
// (key, value) tuples of a mapping.
List MakePairs(const Value& value, RenderBudget* budget);
int64_t GetLength(const Value& value, RenderBudget* budget);
// value[key]; undefined if there is no such item.
Value MakeItem(const Value& value, const Value& key, RenderBudget* budget);
// value[begin:end:step]; a bound that is not given is null.
Value GetSlice(const Value& value, const Value* begin, const Value* end, const Value* step, RenderBudget* budget);

}  // namespace syncopate::text::chat
