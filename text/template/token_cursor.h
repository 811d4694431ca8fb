#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "text/template/lexer.h"
#include "text/template/syntax.h"

namespace syncopate::text::chat {

// Where parsing stands. The first error sticks, and from then on every token is the end, so that all loops end.
class TokenCursor {
 public:
  explicit TokenCursor(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  // Counts how deep rules are within each other, and refuses what is too deep for the stack.
  class Deeper {
   public:
    explicit Deeper(TokenCursor* cursor);
    ~Deeper() { --cursor_->depth_; }

   private:
    TokenCursor* const cursor_;
  };

  bool ok() const { return status_.ok(); }
  const absl::Status& status() const { return status_; }
  void Refuse(absl::string_view what);
  // "<expected> expected", and what is there instead.
  void RefuseToken(absl::string_view expected);

  const Token& Peek(size_t ahead = 0) const;
  bool NextIs(Token::Kind kind, absl::string_view text) const { return Peek().kind == kind && Peek().text == text; }
  bool NextIsOperator(absl::string_view text) const { return NextIs(Token::Kind::kOperator, text); }

  // Only where Peek has shown that there are as many tokens before the end.
  void Advance(size_t tokens = 1) { at_ += ok() ? tokens : 0; }
  std::string TakeText();
  // True if that is the next token; it is taken then.
  bool Take(Token::Kind kind, absl::string_view text);
  bool TakeOperator(absl::string_view text) { return Take(Token::Kind::kOperator, text); }
  bool TakeWord(absl::string_view text) { return Take(Token::Kind::kName, text); }
  // Refuse what is not there.
  void Want(absl::string_view op);
  void WantEndOfTag();
  std::string Name();
  // After an element of a list in brackets: false when the list is over.
  bool MoreElements(absl::string_view close);
  // True while a chain may grow; refuses one that is too long, as its tree would be too deep.
  bool Link(int* length);

  // Nodes of the line where the cursor stands.
  Node Make(Node::Kind kind, std::string name = "") const;
  Node Make(Node::Kind kind, Node left, Node right, std::string name = "") const;
  Node Literal(Value value) const;

 private:
  const std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  absl::Status status_;
};

}  // namespace syncopate::text::chat
