#include "text/template/renderer.h"

#include <algorithm>
#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "text/template/filters_and_methods.h"
#include "text/template/function.h"
#include "text/template/python_text.h"

namespace syncopate::text::chat {

// The names of a block; a name that is not in it is looked up in the enclosing block.
struct Scope {
  Scope* around = nullptr;
  std::map<std::string, Value, std::less<>> names;

  const Value* Find(const std::string& name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->around) {
      const auto found = scope->names.find(name);
      if (found != scope->names.end()) return &found->second;
    }
    return nullptr;
  }
};

namespace {

using NodeKind = Node::Kind;

// Walks the tree that the parser has made. The budget keeps errors, they are not returned: after the first error every
// step is a no-op and the walk ends by itself, which keeps the rules of the language readable. The error names the
// first failing line.
class Renderer {
 public:
  Renderer(int64_t now, const TemplateLimits& limits) : now_(now), budget_(limits) {}

  absl::StatusOr<RenderedChat> Run(const Node& root, const nlohmann::ordered_json& context) {
    // The globals that transformers adds to templates, and the globals of Jinja2 that templates use.
    for (const char* name : {"raise_exception", "strftime_now", "namespace", "dict", "range"}) {
      auto function = std::make_shared<Function>();
      function->name = name;
      globals_.names[name] = Value::OfFunction(std::move(function));
    }
    // Set after the functions: a caller's name hides a global one, as in Jinja2.
    for (const auto& [name, value] : context.items()) globals_.names[name] = Value::FromJson(value, &budget_);
    RenderedChat rendered;
    rendered_ = &rendered;
    if (budget_.ok()) Execute(root, &globals_, &rendered.text);
    if (!budget_.ok()) {
      return failed_line_ == 0 ? budget_.status() : Annotate(budget_.status(), absl::StrCat("line ", failed_line_));
    }
    return rendered;
  }

 private:
  enum class Flow { kNext, kBreak, kContinue };

  // One step of evaluation; counts the nesting of steps.
  class Step {
   public:
    Step(Renderer* renderer, const Node& node) : renderer_(renderer), line_(node.line) {
      if (++renderer_->depth_ > renderer_->budget_.limits().depth)
        renderer_->budget_.Exhaust("it is nested too deeply");
      renderer_->budget_.TakeSteps();
    }
    ~Step() {
      --renderer_->depth_;
      // The innermost step ends first, so this is the line of the innermost failing step.
      if (!renderer_->budget_.ok() && renderer_->failed_line_ == 0) renderer_->failed_line_ = line_;
    }
    bool ok() const { return renderer_->budget_.ok(); }

   private:
    Renderer* const renderer_;
    const int line_;
  };

  Value FailUndefined(const Value& value) {
    budget_.Fail(absl::StrCat("'", value.text(), "' is undefined"));
    return Value();
  }

  void Write(absl::string_view text, std::string* out) {
    const int64_t bytes = static_cast<int64_t>(out->size() + text.size());
    if (bytes > budget_.limits().output_bytes) return budget_.Exhaust("it writes too much");
    out->append(text.data(), text.size());
  }

  Flow Execute(const Node& node, Scope* scope, std::string* out) {
    const Step step(this, node);
    if (!step.ok()) return Flow::kBreak;
    switch (node.kind) {
      case NodeKind::kBody:
        for (const Node& child : node.children) {
          const Flow flow = Execute(child, scope, out);
          if (flow != Flow::kNext) return flow;
        }
        return Flow::kNext;
      case NodeKind::kText:
        Write(node.name, out);
        return Flow::kNext;
      case NodeKind::kPrint:
        Write(PythonStr(Evaluate(node.children[0], scope), &budget_), out);
        return Flow::kNext;
      case NodeKind::kIf:
        if (Evaluate(node.children[0], scope).Truth()) return Execute(node.children[1], scope, out);
        return node.children.size() > 2 ? Execute(node.children[2], scope, out) : Flow::kNext;
      case NodeKind::kFor:
        return Loop(node, scope, out);
      case NodeKind::kBreak:
        return Flow::kBreak;
      case NodeKind::kContinue:
        return Flow::kContinue;
      case NodeKind::kGeneration:
        return Generation(node, scope, out);
      default:
        ExecuteNaming(node, scope, out);
        return Flow::kNext;
    }
  }

  // Statements that set names, or use the text of a block.
  void ExecuteNaming(const Node& node, Scope* scope, std::string* out) {
    switch (node.kind) {
      case NodeKind::kSet:
        return Assign(node, Evaluate(node.children[0], scope), scope);
      case NodeKind::kSetBlock:
      case NodeKind::kFilterBlock: {
        Scope inner{scope, {}};
        std::string text;
        Execute(node.children[1], &inner, &text);
        // The parser has applied the filters to the name kHole, which no template can write.
        inner.names[kHole] = Value::String(std::move(text));
        Value value = Evaluate(node.children[0], &inner);
        if (node.kind == NodeKind::kSetBlock) return Assign(node, std::move(value), scope);
        return Write(PythonStr(value, &budget_), out);
      }
      case NodeKind::kMacro:
        // A macro sees globals and its arguments, but not the block that calls it. The body of a call block sees the
        // block that it is in.
        scope->names[node.name] = MacroValue(node, node.children[0], &globals_);
        return;
      case NodeKind::kCallBlock: {
        const Value caller = MacroValue(node, node.children[1], scope);
        return Write(PythonStr(Call(node.children[0], scope, &caller), &budget_), out);
      }
      default:
        budget_.Fail("an expression where a statement is expected");
    }
  }

  Flow Generation(const Node& node, Scope* scope, std::string* out) {
    // Offsets in a text that is assigned to a name or returned by a macro would not be offsets in the rendered text.
    if (out != &rendered_->text) budget_.Fail("{% generation %} within a macro or a block of text is not supported");
    const size_t begin = out->size();
    const Flow flow = Execute(node.children[0], scope, out);
    rendered_->generated.emplace_back(begin, out->size());
    return flow;
  }

  Value MacroValue(const Node& node, const Node& body, Scope* scope) {
    auto function = std::make_shared<Function>();
    function->kind = Function::Kind::kMacro;
    function->macro = &node;
    function->body = &body;
    function->scope = scope;
    return Value::OfFunction(std::move(function));
  }

  void Assign(const Node& node, Value value, Scope* scope) {
    if (node.names.size() == 1) return AssignOne(node.names[0], std::move(value), scope);
    const List parts = MakeItems(value, &budget_);
    if (parts.size() != node.names.size()) {
      return budget_.Fail(absl::StrCat(node.names.size(), " names are set from ", parts.size(), " values"));
    }
    for (size_t i = 0; i < parts.size(); ++i) AssignOne(node.names[i], parts[i], scope);
  }

  // As in Jinja2, `set` within a loop has no effect outside it; templates use a namespace for that.
  void AssignOne(const std::string& target, Value value, Scope* scope) {
    const size_t dot = target.find('.');
    if (dot == std::string::npos) {
      scope->names[target] = std::move(value);
      return;
    }
    const std::string name = target.substr(0, dot);
    const Value* holder = scope->Find(name);
    if (holder == nullptr || !holder->Is(Value::Kind::kNamespace))
      return budget_.Fail(absl::StrCat("'", name, "' is no namespace"));
    // Copies of a namespace share its entries.
    Value shared = *holder;
    shared.Assign(target.substr(dot + 1), std::move(value), &budget_);
  }

  Flow Loop(const Node& node, Scope* scope, std::string* out) {
    List items = MakeItems(Evaluate(node.children[0], scope), &budget_);
    const auto bind = [&](const Value& item, Scope* inner) {
      if (node.names.size() == 1) {
        inner->names[node.names[0]] = item;
        return;
      }
      const List parts = MakeItems(item, &budget_);
      if (parts.size() != node.names.size()) {
        return budget_.Fail(absl::StrCat("a loop over ", node.names.size(), " names gets ", parts.size(), " values"));
      }
      for (size_t i = 0; i < parts.size(); ++i) inner->names[node.names[i]] = parts[i];
    };
    // `for x in y if z` is filtered before the loop begins, so that loop.index and loop.last count the remaining items.
    if ((node.shape & 1) != 0) {
      List kept;
      for (const Value& item : items) {
        if (!budget_.ok()) break;
        Scope inner{scope, {}};
        bind(item, &inner);
        if (Evaluate(node.children[1], &inner).Truth()) kept.push_back(item);
      }
      items = std::move(kept);
    }
    if (items.empty()) return node.children.size() > 3 ? Execute(node.children[3], scope, out) : Flow::kNext;
    // Each turn has its own scope: names that one turn sets are not visible in the next.
    for (size_t i = 0; i < items.size() && budget_.TakeSteps(); ++i) {
      Scope inner{scope, {}};
      inner.names["loop"] = LoopValue(items, i);
      bind(items[i], &inner);
      if (Execute(node.children[2], &inner, out) == Flow::kBreak) break;
    }
    return Flow::kNext;
  }

  Value LoopValue(const List& items, size_t at) {
    const int64_t index = static_cast<int64_t>(at), count = static_cast<int64_t>(items.size());
    return Value::OfDict({{"index", Value::Int(index + 1)},
                          {"index0", Value::Int(index)},
                          {"revindex", Value::Int(count - index)},
                          {"revindex0", Value::Int(count - index - 1)},
                          {"first", Value::Bool(index == 0)},
                          {"last", Value::Bool(index + 1 == count)},
                          {"length", Value::Int(count)},
                          {"previtem", at > 0 ? items[at - 1] : Value::Undefined("previtem")},
                          {"nextitem", at + 1 < items.size() ? items[at + 1] : Value::Undefined("nextitem")}},
                         &budget_);
  }

  // The arguments of a call, a filter or a test; the node's first child is the function or value that it is applied to.
  Arguments EvaluateArguments(const Node& node, Scope* scope) {
    Arguments arguments;
    for (size_t i = 1; i < node.children.size(); ++i) arguments.positional.push_back(Evaluate(node.children[i], scope));
    for (const auto& [name, expression] : node.named) {
      Value value = Evaluate(expression, scope);
      // "*" and "**" mark `*list` and `**mapping`; no argument can have these names.
      if (name == "*") {
        for (Value& item : MakeItems(value, &budget_)) arguments.positional.push_back(std::move(item));
      } else if (name == "**") {
        if (!value.Is(Value::Kind::kDict)) budget_.Fail("** of a value that is no mapping");
        arguments.named.insert(arguments.named.end(), value.dict().begin(), value.dict().end());
      } else {
        arguments.named.emplace_back(name, std::move(value));
      }
    }
    return arguments;
  }

  Value Call(const Node& node, Scope* scope, const Value* caller) {
    Arguments arguments = EvaluateArguments(node, scope);
    if (caller != nullptr) arguments.named.emplace_back("caller", *caller);
    const Value callee = Evaluate(node.children[0], scope);
    if (callee.Is(Value::Kind::kUndefined)) return FailUndefined(callee);
    if (!callee.Is(Value::Kind::kFunction)) budget_.Fail("a value that is no function is called");
    if (!budget_.ok()) return Value();
    // Keeps the function alive: the call may assign another value to its name.
    const std::shared_ptr<const Function> function = callee.shared_function();
    switch (function->kind) {
      case Function::Kind::kMacro:
        return CallMacro(*function, arguments);
      case Function::Kind::kMethod:
        return CallMethod(function->self, function->name, arguments, &budget_);
      case Function::Kind::kGlobal:
        break;
    }
    return CallGlobal(function->name, arguments);
  }

  Value CallMacro(const Function& function, const Arguments& arguments) {
    const Node& macro = *function.macro;
    if (arguments.positional.size() > macro.names.size()) {
      budget_.Fail(absl::StrCat("macro '", macro.name, "' takes no more than ", macro.names.size(), " arguments"));
    }
    Scope scope{function.scope, {}};
    for (size_t i = 0; i < macro.names.size(); ++i) {
      const std::string& name = macro.names[i];
      if (const Value* given = arguments.Get(i, name)) {
        scope.names[name] = *given;
        continue;
      }
      Value value = Value::Undefined(name);
      for (const auto& [key, otherwise] : macro.named) {
        if (key == name) value = Evaluate(otherwise, &scope);
      }
      scope.names[name] = std::move(value);
    }
    for (const auto& [name, value] : arguments.named) {
      const bool known =
          name == "caller" || std::find(macro.names.begin(), macro.names.end(), name) != macro.names.end();
      if (!known) budget_.Fail(absl::StrCat("macro '", macro.name, "' takes no argument '", name, "'"));
      if (name == "caller") scope.names[name] = value;
    }
    std::string text;
    if (budget_.ok()) Execute(*function.body, &scope, &text);
    budget_.TakeBytes(static_cast<int64_t>(text.size()));
    return Value::String(std::move(text));
  }

  Value CallGlobal(const std::string& name, const Arguments& arguments) {
    if (name == "raise_exception") {
      budget_.Fail(arguments.positional.empty() ? "raise_exception" : PythonStr(arguments.positional[0], &budget_));
      return Value();
    }
    if (name == "strftime_now") return Now(arguments.Text(0, "format", ""));
    if (name == "range") return Range(arguments);
    Dict entries;  // for dict() and namespace()
    for (const Value& given : arguments.positional) {
      if (!given.Is(Value::Kind::kDict)) budget_.Fail(absl::StrCat(name, " of a value that is no mapping"));
      entries.insert(entries.end(), given.dict().begin(), given.dict().end());
    }
    entries.insert(entries.end(), arguments.named.begin(), arguments.named.end());
    return Value::OfDict(std::move(entries), &budget_, name == "dict" ? Value::Kind::kDict : Value::Kind::kNamespace);
  }

  Value Now(const std::string& format) {
    // Uses UTC and the caller's time: a rendered prompt must not depend on where or when a test runs.
    const std::time_t now = now_;
    std::tm parts;
    char text[256];
    if (::gmtime_r(&now, &parts) == nullptr) budget_.Fail("strftime_now: no such time");
    if (!budget_.ok() || format.empty()) return Value::String("");
    const size_t bytes = std::strftime(text, sizeof(text), format.c_str(), &parts);
    if (bytes == 0) budget_.Fail("strftime_now with a format of more than 255 bytes is not supported");
    return Value::String(std::string(text, bytes));
  }

  Value Range(const Arguments& arguments) {
    const List& bounds = arguments.positional;
    const bool whole = std::all_of(bounds.begin(), bounds.end(), [](const Value& bound) { return bound.is_whole(); });
    if (bounds.empty() || bounds.size() > 3 || !whole) budget_.Fail("range needs one to three whole numbers");
    if (!budget_.ok()) return Value();
    const int64_t begin = bounds.size() > 1 ? bounds[0].whole() : 0;
    const int64_t end = bounds[bounds.size() > 1 ? 1 : 0].whole();
    const int64_t step = bounds.size() > 2 ? bounds[2].whole() : 1;
    if (step == 0) budget_.Fail("range with step 0");
    List items;
    for (int64_t i = begin; (step > 0 ? i < end : i > end) && budget_.TakeSteps();) {
      items.push_back(Value::Int(i));
      if (__builtin_add_overflow(i, step, &i)) break;
    }
    return Value::OfList(std::move(items), &budget_);
  }

  Value Evaluate(const Node& node, Scope* scope) {
    const Step step(this, node);
    if (!step.ok()) return Value();
    switch (node.kind) {
      case NodeKind::kLiteral:
        return node.value;
      case NodeKind::kName: {
        const Value* value = scope->Find(node.name);
        return value != nullptr ? *value : Value::Undefined(node.name);
      }
      case NodeKind::kAttribute:
        return Attribute(Evaluate(node.children[0], scope), node.name);
      case NodeKind::kItem: {
        const Value object = Evaluate(node.children[0], scope);
        return MakeItem(object, Evaluate(node.children[1], scope), &budget_);
      }
      case NodeKind::kCall:
        return Call(node, scope, nullptr);
      case NodeKind::kFilter:
      case NodeKind::kTest:
        return Applied(node, scope);
      case NodeKind::kNot:
        return Value::Bool(!Evaluate(node.children[0], scope).Truth());
      // As in Python, the result is the operand and not its truth: templates write defaults as `a or b`.
      case NodeKind::kAnd:
      case NodeKind::kOr: {
        Value left = Evaluate(node.children[0], scope);
        return left.Truth() == (node.kind == NodeKind::kAnd) ? Evaluate(node.children[1], scope) : left;
      }
      case NodeKind::kChoice:
        if (Evaluate(node.children[0], scope).Truth()) return Evaluate(node.children[1], scope);
        return node.children.size() > 2 ? Evaluate(node.children[2], scope) : Value::Undefined("the inline if");
      case NodeKind::kBinary: {
        const Value left = Evaluate(node.children[0], scope);
        return Binary(node.name, left, Evaluate(node.children[1], scope), &budget_);
      }
      default:
        return EvaluateComposed(node, scope);
    }
  }

  Value EvaluateComposed(const Node& node, Scope* scope) {
    switch (node.kind) {
      case NodeKind::kList:
      case NodeKind::kTuple: {
        List items;
        for (const Node& child : node.children) items.push_back(Evaluate(child, scope));
        return Value::OfList(std::move(items), &budget_,
                             node.kind == NodeKind::kList ? Value::Kind::kList : Value::Kind::kTuple);
      }
      case NodeKind::kDict: {
        Dict entries;
        for (size_t i = 0; i + 1 < node.children.size(); i += 2) {
          const Value key = Evaluate(node.children[i], scope);
          if (!key.Is(Value::Kind::kString)) budget_.Fail("a key of a mapping that is no string is not supported");
          entries.emplace_back(key.text(), Evaluate(node.children[i + 1], scope));
        }
        return Value::OfDict(std::move(entries), &budget_);
      }
      case NodeKind::kSlice: {
        const Value object = Evaluate(node.children[0], scope);
        if (object.Is(Value::Kind::kUndefined)) return FailUndefined(object);
        std::optional<Value> bounds[3];
        for (size_t i = 0; i < 3; ++i) {
          if ((node.shape >> i & 1) != 0) bounds[i] = Evaluate(node.children[i + 1], scope);
        }
        const auto bound = [&bounds](size_t i) { return bounds[i].has_value() ? &*bounds[i] : nullptr; };
        return GetSlice(object, bound(0), bound(1), bound(2), &budget_);
      }
      case NodeKind::kSign: {
        const Value operand = Evaluate(node.children[0], scope);
        if (!operand.is_number()) budget_.Fail("a sign before a value that is no number");
        if (!budget_.ok()) return Value();
        if (node.name == "-") return Negative(operand, &budget_);
        return operand.Is(Value::Kind::kFloat) ? operand : Value::Int(operand.whole());
      }
      default:
        budget_.Fail("a statement where an expression is expected");
        return Value();
    }
  }

  Value Applied(const Node& node, Scope* scope) {
    const Value value = Evaluate(node.children[0], scope);
    const Arguments arguments = EvaluateArguments(node, scope);
    if (!budget_.ok()) return Value();
    // Neither is null: the parser has checked the name.
    if (node.kind == NodeKind::kFilter) return FindFilter(node.name)(value, arguments, &budget_);
    return Value::Bool(FindTest(node.name)(value, arguments, &budget_));
  }

  // A method takes precedence over a key of the same name, as in Python.
  Value Attribute(const Value& object, const std::string& name) {
    if (object.Is(Value::Kind::kUndefined)) return FailUndefined(object);
    if (HasMethod(object, name)) {
      auto function = std::make_shared<Function>();
      function->kind = Function::Kind::kMethod;
      function->name = name;
      function->self = object;
      return Value::OfFunction(std::move(function));
    }
    return MakeItem(object, Value::String(name), &budget_);
  }

  const int64_t now_;
  RenderBudget budget_;
  Scope globals_;
  RenderedChat* rendered_ = nullptr;
  int depth_ = 0;
  int failed_line_ = 0;
};

}  // namespace

absl::StatusOr<RenderedChat> RenderTemplate(const Node& root, const nlohmann::ordered_json& context, int64_t now,
                                            const TemplateLimits& limits) {
  return Renderer(now, limits).Run(root, context);
}

}  // namespace syncopate::text::chat
