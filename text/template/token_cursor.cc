#include "text/template/token_cursor.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace syncopate::text::chat {
namespace {

constexpr int kDeepestRule = 150;   // a pair of brackets counts as three
constexpr int kLongestChain = 150;  // operators, filters or attributes one after the other

}  // namespace

TokenCursor::Deeper::Deeper(TokenCursor* cursor) : cursor_(cursor) {
  if (++cursor_->depth_ > kDeepestRule) cursor_->Refuse("nested too deeply");
}

void TokenCursor::Refuse(absl::string_view what) {
  status_.Update(BadTemplate(Peek().line, what));
  // The cursor stays at the end from now on: rules see no further token and return by themselves, and only the first
  // error counts.
  at_ = tokens_.size() - 1;
}

void TokenCursor::RefuseToken(absl::string_view expected) {
  Refuse(absl::StrCat(expected, " expected", Peek().text.empty() ? "" : ", not '" + Peek().text + "'"));
}

const Token& TokenCursor::Peek(size_t ahead) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }

std::string TokenCursor::TakeText() {
  std::string text = Peek().text;
  Advance();
  return text;
}

bool TokenCursor::Take(Token::Kind kind, absl::string_view text) {
  if (!NextIs(kind, text)) return false;
  Advance();
  return true;
}

void TokenCursor::Want(absl::string_view op) {
  if (!TakeOperator(op)) RefuseToken(absl::StrCat("'", op, "'"));
}

void TokenCursor::WantEndOfTag() {
  if (Peek().kind != Token::Kind::kCloseBlock) return RefuseToken("the end of the tag");
  Advance();
}

std::string TokenCursor::Name() {
  if (Peek().kind == Token::Kind::kName) return TakeText();
  RefuseToken("a name");
  return "";
}

bool TokenCursor::MoreElements(absl::string_view close) {
  if (!ok() || TakeOperator(close)) return false;
  Want(",");
  // The closing bracket may follow a comma.
  return ok() && !TakeOperator(close);
}

bool TokenCursor::Link(int* length) {
  if (++*length > kLongestChain) Refuse("too many operators one after the other");
  return ok();
}

Node TokenCursor::Make(Node::Kind kind, std::string name) const {
  Node node;
  node.kind = kind;
  node.line = Peek().line;
  node.name = std::move(name);
  return node;
}

Node TokenCursor::Make(Node::Kind kind, Node left, Node right, std::string name) const {
  Node node = Make(kind, std::move(name));
  node.children.push_back(std::move(left));
  node.children.push_back(std::move(right));
  return node;
}

Node TokenCursor::Literal(Value value) const {
  Node node = Make(Node::Kind::kLiteral);
  node.value = std::move(value);
  return node;
}

}  // namespace syncopate::text::chat
