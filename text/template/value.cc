#include "text/template/value.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "text/template/function.h"
#include "text/template/python_text.h"

namespace syncopate::text::chat {
namespace {

// Bounds the stack of comparing, printing and destroying a value, which are recursive.
constexpr int kDeepestValue = 100;
// Comparisons of keys that count as one step: a comparison is far cheaper than a step of evaluation.
constexpr int64_t kKeysPerStep = 8;

// As in Python, the order of entries does not count.
bool CompareEntries(const Value& a, const Value& b, RenderBudget* budget) {
  if (a.dict().size() != b.dict().size()) return false;
  for (const auto& [key, value] : a.dict()) {
    const Value* other = b.Find(key, budget);
    if (other == nullptr || !Equal(value, *other, budget)) return false;
  }
  return true;
}

}  // namespace

// An undefined value keeps its name as text, so that an error can say which name is undefined.
Value Value::Undefined(std::string name) {
  Value value = String(std::move(name));
  value.kind_ = Kind::kUndefined;
  return value;
}

Value Value::None() {
  Value value;
  value.kind_ = Kind::kNone;
  return value;
}

Value Value::Bool(bool whole) {
  Value value = Int(whole ? 1 : 0);
  value.kind_ = Kind::kBool;
  return value;
}

Value Value::Int(int64_t whole) {
  Value value;
  value.kind_ = Kind::kInt;
  value.whole_ = whole;
  return value;
}

Value Value::Float(double real) {
  Value value;
  value.kind_ = Kind::kFloat;
  value.real_ = real;
  return value;
}

Value Value::String(std::string text) {
  Value value;
  value.kind_ = Kind::kString;
  value.data_ = std::make_shared<std::string>(std::move(text));
  return value;
}

Value Value::OfList(List items, RenderBudget* budget, Kind kind) {
  auto data = std::make_shared<ListData>();
  budget->TakeSteps(static_cast<int64_t>(items.size()));
  for (const Value& item : items) data->depth = DepthWith(item, data->depth, budget);
  if (!budget->ok()) return Value();
  data->items = std::move(items);
  Value value;
  value.kind_ = kind;
  value.data_ = std::move(data);
  return value;
}

Value Value::OfDict(Dict entries, RenderBudget* budget, Kind kind) {
  auto data = std::make_shared<DictData>();
  for (auto& [key, item] : entries) {
    budget->TakeSteps(1 + static_cast<int64_t>(data->entries.size()) / kKeysPerStep);
    data->depth = DepthWith(item, data->depth, budget);
    if (!budget->ok()) return Value();
    // A dict keeps the order of its keys, which templates print; it is small, so a linear search is faster than a map.
    // As in Python, a key that occurs twice keeps its first position and gets its last value.
    const auto same = std::find_if(data->entries.begin(), data->entries.end(),
                                   [&key = key](const auto& entry) { return entry.first == key; });
    if (same != data->entries.end()) {
      same->second = std::move(item);
    } else {
      data->entries.emplace_back(std::move(key), std::move(item));
    }
  }
  Value value;
  value.kind_ = kind;
  value.data_ = std::move(data);
  return value;
}

Value Value::OfFunction(std::shared_ptr<const Function> function) {
  Value value;
  value.kind_ = Kind::kFunction;
  // One pointer type serves all kinds of data; function() gives only const access to a function.
  value.data_ = std::const_pointer_cast<Function>(std::move(function));
  return value;
}

Value Value::FromJson(const nlohmann::ordered_json& json, RenderBudget* budget) {
  if (!budget->TakeSteps()) return Value();
  switch (json.type()) {
    case nlohmann::ordered_json::value_t::null:
      return None();
    case nlohmann::ordered_json::value_t::boolean:
      return Bool(json.get<bool>());
    // Python's integers have no bound; a wrong number must not be printed instead of a large one.
    case nlohmann::ordered_json::value_t::number_unsigned:
      if (json.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        budget->Fail("a whole number beyond 64 bits is not supported");
      }
      return Int(json.get<int64_t>());
    case nlohmann::ordered_json::value_t::number_integer:
      return Int(json.get<int64_t>());
    case nlohmann::ordered_json::value_t::number_float:
      return Float(json.get<double>());
    case nlohmann::ordered_json::value_t::string: {
      const auto& text = json.get_ref<const std::string&>();
      budget->TakeBytes(static_cast<int64_t>(text.size()));
      return String(text);
    }
    case nlohmann::ordered_json::value_t::array: {
      List items;
      for (const auto& item : json) items.push_back(FromJson(item, budget));
      return OfList(std::move(items), budget);
    }
    case nlohmann::ordered_json::value_t::object: {
      Dict entries;
      for (const auto& [key, item] : json.items()) entries.emplace_back(key, FromJson(item, budget));
      return OfDict(std::move(entries), budget);
    }
    default:
      budget->Fail("a value of no JSON type");
      return Value();
  }
}

// text(), list() and dict() return an empty value for other kinds, so that callers need no check before each use.
const std::string& Value::text() const {
  static const std::string* const empty = new std::string;
  const bool has = data_ != nullptr && (kind_ == Kind::kString || kind_ == Kind::kUndefined);
  return has ? *static_cast<const std::string*>(data_.get()) : *empty;
}

const List& Value::list() const {
  static const List* const empty = new List;
  return is_list() ? static_cast<const ListData*>(data_.get())->items : *empty;
}

const Dict& Value::dict() const {
  static const Dict* const empty = new Dict;
  const bool has = kind_ == Kind::kDict || kind_ == Kind::kNamespace;
  return has ? static_cast<const DictData*>(data_.get())->entries : *empty;
}

const Function& Value::function() const { return *static_cast<const Function*>(data_.get()); }

std::shared_ptr<const Function> Value::shared_function() const {
  return std::static_pointer_cast<const Function>(data_);
}

// Truth as in Python and Jinja: empty values, zero, none and undefined are false.
bool Value::Truth() const {
  switch (kind_) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return whole_ != 0;
    case Kind::kFloat:
      return real_ != 0;
    case Kind::kString:
      return !text().empty();
    case Kind::kList:
    case Kind::kTuple:
      return !list().empty();
    case Kind::kDict:
      return !dict().empty();
    case Kind::kNamespace:
    case Kind::kFunction:
      return true;
  }
  return false;
}

const Value* Value::Find(absl::string_view key, RenderBudget* budget) const {
  budget->TakeSteps(static_cast<int64_t>(dict().size()) / kKeysPerStep);
  for (const auto& [name, value] : dict()) {
    if (name == key) return &value;
  }
  return nullptr;
}

void Value::Assign(absl::string_view key, Value value, RenderBudget* budget) {
  // Only namespaces are modified, and no other value can contain a namespace: so no value can contain itself.
  DepthWith(value, 1, budget);
  if (!budget->ok()) return;
  auto& entries = static_cast<DictData*>(data_.get())->entries;
  budget->TakeSteps(static_cast<int64_t>(entries.size()) / kKeysPerStep);
  for (auto& [name, old] : entries) {
    if (name == key) {
      old = std::move(value);
      return;
    }
  }
  entries.emplace_back(std::string(key), std::move(value));
}

int Value::depth() const {
  if (is_list()) return static_cast<const ListData*>(data_.get())->depth;
  if (kind_ == Kind::kDict) return static_cast<const DictData*>(data_.get())->depth;
  return 0;
}

// Functions and namespaces are refused inside other values: a namespace is the only value that changes, so without them
// every value is a finite tree.
int Value::DepthWith(const Value& value, int depth, RenderBudget* budget) {
  if (value.kind_ == Kind::kFunction || value.kind_ == Kind::kNamespace) {
    budget->Fail("a function or a namespace within another value is not supported");
  }
  const int deeper = std::max(depth, value.depth() + 1);
  if (deeper > kDeepestValue) budget->Exhaust("a value is nested too deeply");
  return deeper;
}

const Value* Arguments::Get(size_t place, absl::string_view name) const {
  if (place < positional.size()) return &positional[place];
  for (const auto& [key, value] : named) {
    if (key == name) return &value;
  }
  return nullptr;
}

int64_t Arguments::Int(size_t place, absl::string_view name, int64_t otherwise) const {
  const Value* value = Get(place, name);
  return value != nullptr && value->is_whole() ? value->whole() : otherwise;
}

std::string Arguments::Text(size_t place, absl::string_view name, absl::string_view otherwise) const {
  const Value* value = Get(place, name);
  return value != nullptr && value->Is(Value::Kind::kString) ? value->text() : std::string(otherwise);
}

bool Arguments::Flag(size_t place, absl::string_view name, bool otherwise) const {
  const Value* value = Get(place, name);
  return value != nullptr ? value->Truth() : otherwise;
}

bool Equal(const Value& a, const Value& b, RenderBudget* budget) {
  if (!budget->TakeSteps()) return false;
  // Booleans are whole numbers here, as in Python: True == 1.
  if (a.is_number() && b.is_number()) {
    return a.is_whole() && b.is_whole() ? a.whole() == b.whole() : a.number() == b.number();
  }
  // Values of different kinds are not equal, as in Python: a list never equals a tuple.
  if (a.kind() != b.kind()) return false;
  if (a.is_list()) {
    return a.list().size() == b.list().size() &&
           std::equal(a.list().begin(), a.list().end(), b.list().begin(),
                      [budget](const Value& x, const Value& y) { return Equal(x, y, budget); });
  }
  switch (a.kind()) {
    case Value::Kind::kString:
      // Comparing a kilobyte counts as one step.
      budget->TakeSteps(static_cast<int64_t>(std::min(a.text().size(), b.text().size())) / 1024);
      return a.text() == b.text();
    case Value::Kind::kDict:
      return CompareEntries(a, b, budget);
    case Value::Kind::kNamespace:
    case Value::Kind::kFunction:
      return false;
    default:
      return true;
  }
}

int Compare(const Value& a, const Value& b, RenderBudget* budget) {
  budget->TakeSteps();
  if (a.is_number() && b.is_number()) {
    if (a.is_whole() && b.is_whole()) return a.whole() < b.whole() ? -1 : a.whole() > b.whole();
    return a.number() < b.number() ? -1 : a.number() > b.number();
  }
  if (a.Is(Value::Kind::kString) && b.Is(Value::Kind::kString)) return a.text().compare(b.text());
  // Python raises TypeError here, so the rendering fails too instead of choosing an order.
  budget->Fail("values that have no order are compared");
  return 0;
}

bool Contains(const Value& whole, const Value& part, RenderBudget* budget) {
  switch (whole.kind()) {
    case Value::Kind::kString:
      if (!part.Is(Value::Kind::kString)) budget->Fail("'in' of a string needs a string");
      budget->TakeSteps(static_cast<int64_t>(whole.text().size()) / 1024);
      return whole.text().find(part.text()) != std::string::npos;
    case Value::Kind::kDict:
      return part.Is(Value::Kind::kString) && whole.Find(part.text(), budget) != nullptr;
    case Value::Kind::kUndefined:
      return false;
    case Value::Kind::kList:
    case Value::Kind::kTuple:
      return std::any_of(whole.list().begin(), whole.list().end(),
                         [&](const Value& item) { return Equal(item, part, budget); });
    default:
      budget->Fail("'in' of a value that cannot contain anything");
      return false;
  }
}

List MakeItems(const Value& value, RenderBudget* budget) {
  List items;
  switch (value.kind()) {
    case Value::Kind::kList:
    case Value::Kind::kTuple:
      // The copy keeps the loop's items when the loop changes the variable.
      if (budget->TakeSteps(static_cast<int64_t>(value.list().size()))) items = value.list();
      break;
    case Value::Kind::kDict:
      for (const auto& [key, item] : value.dict()) {
        if (!budget->TakeSteps()) break;
        items.push_back(Value::String(key));
      }
      break;
    case Value::Kind::kString:
      for (size_t at = 0; at < value.text().size() && budget->TakeSteps();) {
        const absl::string_view character = CharacterAt(value.text(), at);
        items.push_back(Value::String(std::string(character)));
        at += character.size();
      }
      break;
    case Value::Kind::kUndefined:  // Jinja iterates over an undefined name as over an empty list
      break;
    default:
      budget->Fail("a value that is no sequence is iterated over");
  }
  return items;
}

List MakePairs(const Value& value, RenderBudget* budget) {
  List pairs;
  if (value.Is(Value::Kind::kUndefined)) return pairs;
  if (!value.Is(Value::Kind::kDict)) budget->Fail("items of a value that is no mapping");
  for (const auto& [key, item] : value.dict()) {
    if (!budget->TakeSteps()) break;
    pairs.push_back(Value::OfList({Value::String(key), item}, budget, Value::Kind::kTuple));
  }
  return pairs;
}

int64_t GetLength(const Value& value, RenderBudget* budget) {
  switch (value.kind()) {
    case Value::Kind::kList:
    case Value::Kind::kTuple:
      return static_cast<int64_t>(value.list().size());
    case Value::Kind::kDict:
      return static_cast<int64_t>(value.dict().size());
    case Value::Kind::kString:
      budget->TakeSteps(static_cast<int64_t>(value.text().size()) / 1024);
      return CharactersIn(value.text());
    case Value::Kind::kUndefined:
      return 0;
    default:
      budget->Fail("length of a value that has none");
      return 0;
  }
}

Value MakeItem(const Value& value, const Value& key, RenderBudget* budget) {
  if (value.Is(Value::Kind::kUndefined)) {
    budget->Fail(absl::StrCat("'", value.text(), "' is undefined"));
    return Value();
  }
  if (key.is_whole() && (value.is_list() || value.Is(Value::Kind::kString))) {
    const int64_t length = GetLength(value, budget);
    // A negative index counts from the end: -1 is the last item.
    const int64_t place = key.whole() < 0 ? key.whole() + length : key.whole();
    // Undefined and no error, as in Jinja: templates test such items by `is defined`.
    if (place < 0 || place >= length) return Value::Undefined(absl::StrCat("item ", key.whole()));
    if (value.is_list()) return value.list()[static_cast<size_t>(place)];
    // A place counts characters, as in Python; text() is UTF-8.
    size_t at = 0;
    for (int64_t i = 0; i < place; ++i) at += CharacterAt(value.text(), at).size();
    return Value::String(std::string(CharacterAt(value.text(), at)));
  }
  if (key.Is(Value::Kind::kString)) {
    if (const Value* found = value.Find(key.text(), budget)) return *found;
    return Value::Undefined(key.text());
  }
  return Value::Undefined("item");
}

Value GetSlice(const Value& value, const Value* begin, const Value* end, const Value* step, RenderBudget* budget) {
  const bool sliceable = value.is_list() || value.Is(Value::Kind::kString);
  for (const Value* bound : {begin, end, step}) {
    if (bound != nullptr && !bound->is_whole() && !bound->Is(Value::Kind::kNone))
      budget->Fail("a slice's bound is no integer");
  }
  const auto given = [](const Value* bound) { return bound != nullptr && bound->is_whole(); };
  const int64_t stride = given(step) ? step->whole() : 1;
  if (!sliceable || stride == 0) budget->Fail("a slice with step 0, or of a value that has no order");
  if (!budget->ok()) return Value();
  const List all = MakeItems(value, budget);
  const int64_t size = static_cast<int64_t>(all.size());
  const auto place = [&](const Value* bound, int64_t otherwise) {
    if (!given(bound)) return otherwise;
    // With a negative stride, the end position before the first item is -1.
    const int64_t low = stride > 0 ? 0 : -1, high = stride > 0 ? size : size - 1;
    if (bound->whole() < -size) return low;  // prevents an overflow below
    const int64_t index = bound->whole() < 0 ? bound->whole() + size : bound->whole();
    return std::max(low, std::min(index, high));
  };
  const int64_t first = place(begin, stride > 0 ? 0 : size - 1), last = place(end, stride > 0 ? size : -1);
  List items;
  for (int64_t i = first; (stride > 0 ? i < last : i > last) && budget->TakeSteps();) {
    items.push_back(all[static_cast<size_t>(i)]);
    // A step may be as large as an integer.
    if (__builtin_add_overflow(i, stride, &i)) break;
  }
  if (!value.Is(Value::Kind::kString)) return Value::OfList(std::move(items), budget, value.kind());
  std::string text;
  for (const Value& item : items) text += item.text();
  budget->TakeBytes(static_cast<int64_t>(text.size()));
  return Value::String(std::move(text));
}

}  // namespace syncopate::text::chat
