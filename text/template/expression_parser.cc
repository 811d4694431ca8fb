#include "text/template/expression_parser.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "text/template/filters_and_methods.h"

namespace syncopate::text::chat {
namespace {

// One function for each rule of the grammar, from the weakest binding to the strongest.
class ExpressionRules {
 public:
  explicit ExpressionRules(TokenCursor* cursor) : cursor_(cursor) {}

  Node Tuple(bool choice) {
    Node first = choice ? Expression() : Or();
    if (!cursor_->NextIsOperator(",")) return first;
    Node tuple = cursor_->Make(Node::Kind::kTuple);
    tuple.children.push_back(std::move(first));
    while (cursor_->ok() && cursor_->TakeOperator(",")) {
      const bool over =
          cursor_->Peek().kind == Token::Kind::kCloseBlock || cursor_->Peek().kind == Token::Kind::kClosePrint;
      if (over || cursor_->NextIsOperator(")")) break;
      tuple.children.push_back(choice ? Expression() : Or());
    }
    return tuple;
  }

  // Recursion goes through Expression, Not and Signed: each counts the depth, so that a template of brackets cannot
  // overflow the stack. Chains count their length, because their trees are deep on the left and are walked recursively.
  Node Expression() {
    const TokenCursor::Deeper deeper(cursor_);
    Node value = Or();
    for (int length = 0; cursor_->TakeWord("if") && cursor_->Link(&length);) {
      Node choice = cursor_->Make(Node::Kind::kChoice);
      choice.children.push_back(Or());
      choice.children.push_back(std::move(value));
      // Without else the value is undefined, which prints nothing.
      if (cursor_->TakeWord("else")) choice.children.push_back(Expression());
      value = std::move(choice);
    }
    return value;
  }

  Node Or() {
    Node left = And();
    for (int length = 0; cursor_->TakeWord("or") && cursor_->Link(&length);)
      left = cursor_->Make(Node::Kind::kOr, std::move(left), And());
    return left;
  }

  Node And() {
    Node left = Not();
    for (int length = 0; cursor_->TakeWord("and") && cursor_->Link(&length);)
      left = cursor_->Make(Node::Kind::kAnd, std::move(left), Not());
    return left;
  }

  Node Not() {
    const TokenCursor::Deeper deeper(cursor_);
    if (!cursor_->TakeWord("not")) return Comparison();
    Node node = cursor_->Make(Node::Kind::kNot);
    node.children.push_back(Not());
    return node;
  }

  // "a < b < c" is "a < b and b < c".
  Node Comparison() {
    Node left = Sum();
    std::optional<Node> all;
    int length = 0;
    while (cursor_->ok()) {
      const std::string op = ComparisonOperator();
      if (op.empty() || !cursor_->Link(&length)) break;
      if (length > 8) cursor_->Refuse("too many comparisons one after the other");  // each copies its right side
      Node right = Sum();
      Node one = cursor_->Make(Node::Kind::kBinary, std::move(left), right, op);
      all = all.has_value() ? cursor_->Make(Node::Kind::kAnd, *std::move(all), std::move(one)) : std::move(one);
      left = std::move(right);
    }
    return all.has_value() ? *std::move(all) : std::move(left);
  }

  std::string ComparisonOperator() {
    for (const char* op : {"==", "!=", "<=", ">=", "<", ">"}) {
      if (cursor_->TakeOperator(op)) return op;
    }
    if (cursor_->TakeWord("in")) return "in";
    // Two words are one operator: `a not in b`.
    const bool not_in = cursor_->NextIs(Token::Kind::kName, "not") && cursor_->Peek(1).kind == Token::Kind::kName &&
                        cursor_->Peek(1).text == "in";
    if (!not_in) return "";
    cursor_->Advance(2);
    return "not in";
  }

  Node Chain(std::initializer_list<const char*> operators, Node (ExpressionRules::*next)()) {
    Node left = (this->*next)();
    int length = 0;
    while (cursor_->ok()) {
      const auto op =
          std::find_if(operators.begin(), operators.end(), [this](const char* o) { return cursor_->TakeOperator(o); });
      if (op == operators.end() || !cursor_->Link(&length)) break;
      left = cursor_->Make(Node::Kind::kBinary, std::move(left), (this->*next)(), *op);
    }
    return left;
  }
  Node Sum() { return Chain({"+", "-"}, &ExpressionRules::Concatenation); }
  Node Concatenation() { return Chain({"~"}, &ExpressionRules::Product); }
  Node Product() { return Chain({"*", "//", "/", "%"}, &ExpressionRules::Power); }
  // Left-associative as in Jinja, unlike in Python.
  Node Power() { return Chain({"**"}, &ExpressionRules::Operand); }
  Node Operand() { return Filters(Signed(), /*bar_taken=*/false); }

  // A sign binds tighter than a filter: its operand does not include the filters after it.
  Node Signed() {
    const TokenCursor::Deeper deeper(cursor_);
    if (!cursor_->NextIsOperator("-") && !cursor_->NextIsOperator("+")) return Postfix(Primary());
    Node node = cursor_->Make(Node::Kind::kSign, cursor_->Peek().text);
    cursor_->Advance();
    node.children.push_back(Signed());
    return node;
  }

  Node Primary() {
    const Token token = cursor_->Peek();
    switch (token.kind) {
      case Token::Kind::kName:
        cursor_->Advance();
        // Jinja accepts both spellings.
        if (token.text == "true" || token.text == "True") return cursor_->Literal(Value::Bool(true));
        if (token.text == "false" || token.text == "False") return cursor_->Literal(Value::Bool(false));
        if (token.text == "none" || token.text == "None") return cursor_->Literal(Value::None());
        return cursor_->Make(Node::Kind::kName, token.text);
      case Token::Kind::kString: {
        std::string text;
        // Adjacent strings are concatenated.
        while (cursor_->Peek().kind == Token::Kind::kString) text += cursor_->TakeText();
        return cursor_->Literal(Value::String(std::move(text)));
      }
      case Token::Kind::kInteger:
        return Integer();
      case Token::Kind::kFloat: {
        double real = 0;
        if (!absl::SimpleAtod(token.text, &real)) cursor_->Refuse("a bad number");
        if (cursor_->ok()) cursor_->Advance();
        return cursor_->Literal(Value::Float(real));
      }
      default:
        return Bracketed();
    }
  }

  Node Integer() {
    int64_t whole = 0;
    if (!absl::SimpleAtoi(cursor_->Peek().text, &whole))
      cursor_->Refuse("a whole number beyond 64 bits is not supported");
    if (cursor_->ok()) cursor_->Advance();
    return cursor_->Literal(Value::Int(whole));
  }

  Node Bracketed() {
    if (cursor_->TakeOperator("(")) {
      if (cursor_->TakeOperator(")")) return cursor_->Make(Node::Kind::kTuple);
      Node inner = Tuple(/*choice=*/true);
      cursor_->Want(")");
      return inner;
    }
    if (cursor_->TakeOperator("[")) {
      Node list = cursor_->Make(Node::Kind::kList);
      if (cursor_->TakeOperator("]")) return list;
      do {
        list.children.push_back(Expression());
      } while (cursor_->MoreElements("]"));
      return list;
    }
    Node dict = cursor_->Make(Node::Kind::kDict);
    if (!cursor_->TakeOperator("{")) {
      cursor_->RefuseToken("a value");
      return dict;
    }
    if (cursor_->TakeOperator("}")) return dict;
    do {
      dict.children.push_back(Expression());
      cursor_->Want(":");
      dict.children.push_back(Expression());
    } while (cursor_->MoreElements("}"));
    return dict;
  }

  void CallArguments(Node* node) {
    if (cursor_->TakeOperator(")")) return;
    do {
      const bool named = cursor_->Peek().kind == Token::Kind::kName &&
                         cursor_->Peek(1).kind == Token::Kind::kOperator && cursor_->Peek(1).text == "=";
      if (named) {
        std::string name = cursor_->Name();
        cursor_->Want("=");
        node->named.push_back({std::move(name), Expression()});
      } else if (cursor_->TakeOperator("**")) {
        // Stored under "**" and "*", which no argument can be called.
        node->named.push_back({"**", Expression()});
      } else if (cursor_->TakeOperator("*")) {
        node->named.push_back({"*", Expression()});
      } else {
        node->children.push_back(Expression());
      }
    } while (cursor_->MoreElements(")"));
  }

  Node Postfix(Node node) {
    int length = 0;
    while (cursor_->ok()) {
      if (cursor_->TakeOperator(".")) {
        node = Attribute(std::move(node));
      } else if (cursor_->TakeOperator("[")) {
        node = ItemOrSlice(std::move(node));
      } else if (cursor_->TakeOperator("(")) {
        node = Call(std::move(node));
      } else {
        break;
      }
      cursor_->Link(&length);
    }
    return node;
  }

  Node Attribute(Node object) {
    // `a.0` is `a[0]`.
    const bool item = cursor_->Peek().kind == Token::Kind::kInteger;
    Node node = cursor_->Make(item ? Node::Kind::kItem : Node::Kind::kAttribute);
    node.children.push_back(std::move(object));
    if (item) {
      node.children.push_back(Integer());
    } else {
      node.name = cursor_->Name();
    }
    return node;
  }

  Node Call(Node function) {
    Node call = cursor_->Make(Node::Kind::kCall);
    // Refused when the template is loaded, not when it is first rendered, so that a run fails before it starts.
    if (function.kind == Node::Kind::kAttribute && !IsMethod(function.name)) {
      cursor_->Refuse(absl::StrCat("the method '", function.name, "' is not supported"));
    }
    call.children.push_back(std::move(function));
    CallArguments(&call);
    return call;
  }

  Node ItemOrSlice(Node object) {
    Node node = cursor_->Make(Node::Kind::kSlice);
    node.children.push_back(std::move(object));
    const auto bound = [&](int bit) {
      const bool given = !cursor_->NextIsOperator(":") && !cursor_->NextIsOperator("]");
      if (given) node.shape |= bit;
      // The node always has three bounds; `shape` says which of them are given.
      node.children.push_back(given ? Expression() : cursor_->Make(Node::Kind::kLiteral));
    };
    bound(1);
    if (!cursor_->TakeOperator(":")) {
      if (node.shape == 0) cursor_->RefuseToken("an index");
      node.kind = Node::Kind::kItem;
    } else {
      bound(2);
      const bool stepped = cursor_->TakeOperator(":");
      if (stepped) bound(4);
      if (!stepped) node.children.push_back(cursor_->Make(Node::Kind::kLiteral));
    }
    cursor_->Want("]");
    return node;
  }

  Node Filters(Node node, bool bar_taken) {
    for (int length = 0; cursor_->ok();) {
      if (std::exchange(bar_taken, false) || cursor_->TakeOperator("|")) {
        node = FilterNode(std::move(node));
      } else if (cursor_->TakeWord("is")) {
        node = TestNode(std::move(node));
      } else {
        break;
      }
      cursor_->Link(&length);
    }
    return node;
  }

  Node FilterNode(Node value) {
    Node node = cursor_->Make(Node::Kind::kFilter, cursor_->Name());
    if (cursor_->ok() && FindFilter(node.name) == nullptr)
      cursor_->Refuse(absl::StrCat("the filter '", node.name, "' is not supported"));
    node.children.push_back(std::move(value));
    if (cursor_->TakeOperator("(")) CallArguments(&node);
    return node;
  }

  Node TestNode(Node value) {
    const bool negated = cursor_->TakeWord("not");
    Node node = cursor_->Make(Node::Kind::kTest, cursor_->Name());
    if (cursor_->ok() && FindTest(node.name) == nullptr)
      cursor_->Refuse(absl::StrCat("the test '", node.name, "' is not supported"));
    node.children.push_back(std::move(value));
    if (cursor_->TakeOperator("(")) {
      CallArguments(&node);
    } else if (ValueFollows()) {
      node.children.push_back(Postfix(Primary()));
    }
    if (!negated) return node;
    // There is no node for `is not`: it is a negated test.
    Node inverse = cursor_->Make(Node::Kind::kNot);
    inverse.children.push_back(std::move(node));
    return inverse;
  }

  // Whether an argument without brackets follows the test's name.
  bool ValueFollows() const {
    static constexpr absl::string_view kWords[] = {"else", "or", "and", "is", "if", "in", "not"};
    switch (cursor_->Peek().kind) {
      case Token::Kind::kString:
      case Token::Kind::kInteger:
      case Token::Kind::kFloat:
        return true;
      case Token::Kind::kName:
        return std::find(std::begin(kWords), std::end(kWords), cursor_->Peek().text) == std::end(kWords);
      default:
        return cursor_->NextIsOperator("[") || cursor_->NextIsOperator("{");
    }
  }

 private:
  TokenCursor* const cursor_;
};

}  // namespace

Node ParseTuple(TokenCursor* cursor, bool choice) { return ExpressionRules(cursor).Tuple(choice); }

Node ParseExpression(TokenCursor* cursor) { return ExpressionRules(cursor).Expression(); }

Node ParseFilters(TokenCursor* cursor, Node node, bool bar_taken) {
  return ExpressionRules(cursor).Filters(std::move(node), bar_taken);
}

}  // namespace syncopate::text::chat
