#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "text/template/lexer.h"
#include "text/template/syntax.h"

namespace syncopate::text::chat {

// The parser's position in the tokens. It keeps the first error; after that every token is kEnd, so that all loops end.
class TokenCursor {
 public:
  explicit TokenCursor(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  // Counts the nesting of rules while it exists, and refuses a nesting that is too deep for the stack.
  class Deeper {
   public:
    explicit Deeper(TokenCursor* cursor);
    ~Deeper() { --cursor_->depth_; }

   private:
    TokenCursor* const cursor_;
  };

  bool ok() const { return status_.ok(); }
  const absl::Status& status() const { return status_; }
  // Sets the error BadTemplate at the current line.
  void Refuse(absl::string_view what);
  // Sets the error "<expected> expected" with the token that is there instead.
  void RefuseToken(absl::string_view expected);

  const Token& Peek(size_t ahead = 0) const;
  bool NextIs(Token::Kind kind, absl::string_view text) const { return Peek().kind == kind && Peek().text == text; }
  bool NextIsOperator(absl::string_view text) const { return NextIs(Token::Kind::kOperator, text); }

  // Call it only if Peek has shown that there are `tokens` tokens before kEnd.
  void Advance(size_t tokens = 1) { at_ += ok() ? tokens : 0; }
  std::string TakeText();
  // If the next token is of this kind and text, moves past it and returns true.
  bool Take(Token::Kind kind, absl::string_view text);
  bool TakeOperator(absl::string_view text) { return Take(Token::Kind::kOperator, text); }
  bool TakeWord(absl::string_view text) { return Take(Token::Kind::kName, text); }
  // Move past the operator, the end of the tag, or a name; an error if the next token is another.
  void Want(absl::string_view op);
  void WantEndOfTag();
  std::string Name();
  // Call after an element of a list in brackets. Moves past a comma or `close`; false when the list is over.
  bool MoreElements(absl::string_view close);
  // Counts one more link of a chain of operators. An error if the chain is too long, as its tree would be too deep.
  bool Link(int* length);

  // Make nodes with the line of the current token.
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
