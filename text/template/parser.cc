#include "text/template/parser.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "text/template/expression_parser.h"
#include "text/template/lexer.h"
#include "text/template/token_cursor.h"

namespace syncopate::text::chat {
namespace {

// Parses text and tags by recursive descent.
class StatementRules {
 public:
  explicit StatementRules(TokenCursor* cursor) : cursor_(cursor) {}

  // Parses up to a tag whose name is one of `ends`; takes that name and stores it in *which.
  Node Body(const std::vector<absl::string_view>& ends, std::string* which = nullptr) {
    const TokenCursor::Deeper deeper(cursor_);
    Node body = cursor_->Make(Node::Kind::kBody);
    while (cursor_->ok()) {
      switch (cursor_->Peek().kind) {
        case Token::Kind::kText:
          body.children.push_back(cursor_->Make(Node::Kind::kText, cursor_->Peek().text));
          cursor_->Advance();
          break;
        case Token::Kind::kOpenPrint: {
          cursor_->Advance();
          Node print = cursor_->Make(Node::Kind::kPrint);
          print.children.push_back(ParseTuple(cursor_, /*choice=*/true));
          if (cursor_->Peek().kind != Token::Kind::kClosePrint) cursor_->RefuseToken("'}}'");
          if (cursor_->ok()) cursor_->Advance();
          body.children.push_back(std::move(print));
          break;
        }
        case Token::Kind::kOpenBlock: {
          const bool ended = cursor_->Peek(1).kind == Token::Kind::kName &&
                             std::find(ends.begin(), ends.end(), cursor_->Peek(1).text) != ends.end();
          if (ended) {
            if (which != nullptr) *which = cursor_->Peek(1).text;
            cursor_->Advance(2);
            return body;
          }
          cursor_->Advance();
          body.children.push_back(Statement());
          break;
        }
        default:
          if (cursor_->Peek().kind != Token::Kind::kEnd) cursor_->RefuseToken("text or a tag");
          if (!ends.empty()) cursor_->Refuse(absl::StrCat("'", ends.back(), "' is missing"));
          return body;
      }
    }
    return body;
  }
  // Parses the rest of a tag, and the body up to the tag `end`, which is taken too.
  Node Block(absl::string_view end) {
    cursor_->WantEndOfTag();
    Node body = Body({end});
    cursor_->WantEndOfTag();
    return body;
  }

  Node Statement() {
    const std::string word = cursor_->Name();
    if (word == "if") return If();
    if (word == "for") return For();
    if (word == "set") return Set();
    if (word == "macro") return Macro();
    if (word == "call") return CallBlock();
    if (word == "break" || word == "continue") {
      // Refused when the template is loaded, like every error that can be known then.
      if (loops_ == 0) cursor_->Refuse(absl::StrCat("'", word, "' outside of a loop"));
      Node node = cursor_->Make(word == "break" ? Node::Kind::kBreak : Node::Kind::kContinue);
      cursor_->WantEndOfTag();
      return node;
    }
    if (word == "generation") {
      Node node = cursor_->Make(Node::Kind::kGeneration);
      node.children.push_back(Block("endgeneration"));
      return node;
    }
    if (word == "filter") {
      Node node = cursor_->Make(Node::Kind::kFilterBlock);
      node.children.push_back(ParseFilters(cursor_, cursor_->Make(Node::Kind::kName, kHole), /*bar_taken=*/true));
      node.children.push_back(OutsideLoops([this] { return Block("endfilter"); }));
      return node;
    }
    cursor_->Refuse(absl::StrCat("the tag '", word, "' is not supported"));
    return cursor_->Make(Node::Kind::kBody);
  }

  Node If() {
    const TokenCursor::Deeper deeper(cursor_);  // an elif is an if within the else
    Node node = cursor_->Make(Node::Kind::kIf);
    node.children.push_back(ParseTuple(cursor_, /*choice=*/true));
    cursor_->WantEndOfTag();
    std::string end;
    node.children.push_back(Body({"elif", "else", "endif"}, &end));
    if (end == "elif") {
      node.children.push_back(If());
      return node;
    }
    if (end == "else") {
      node.children.push_back(Block("endif"));
    } else {
      cursor_->WantEndOfTag();
    }
    return node;
  }

  Node For() {
    Node node = cursor_->Make(Node::Kind::kFor);
    const bool brackets = cursor_->TakeOperator("(");
    do {
      node.names.push_back(cursor_->Name());
    } while (cursor_->ok() && cursor_->TakeOperator(","));
    if (brackets) cursor_->Want(")");
    if (!cursor_->TakeWord("in")) cursor_->RefuseToken("'in'");
    node.children.push_back(ParseTuple(cursor_, /*choice=*/false));
    const bool filtered = cursor_->TakeWord("if");
    node.shape = filtered ? 1 : 0;
    node.children.push_back(filtered ? ParseExpression(cursor_) : cursor_->Make(Node::Kind::kLiteral));
    if (cursor_->NextIs(Token::Kind::kName, "recursive")) cursor_->Refuse("recursive loops are not supported");
    cursor_->WantEndOfTag();
    std::string end;
    ++loops_;
    ++scopes_;
    node.children.push_back(Body({"else", "endfor"}, &end));
    --loops_;
    --scopes_;
    if (end == "else") {
      node.children.push_back(Block("endfor"));
    } else {
      cursor_->WantEndOfTag();
    }
    return node;
  }

  Node Set() {
    Node node = cursor_->Make(Node::Kind::kSet);
    do {
      std::string target = cursor_->Name();
      if (cursor_->TakeOperator(".")) absl::StrAppend(&target, ".", cursor_->Name());
      node.names.push_back(std::move(target));
    } while (cursor_->ok() && cursor_->TakeOperator(","));
    if (cursor_->TakeOperator("=")) {
      node.children.push_back(ParseTuple(cursor_, /*choice=*/true));
      cursor_->WantEndOfTag();
      return node;
    }
    node.kind = Node::Kind::kSetBlock;
    Node hole = cursor_->Make(Node::Kind::kName, kHole);
    node.children.push_back(cursor_->NextIsOperator("|") ? ParseFilters(cursor_, std::move(hole), /*bar_taken=*/false)
                                                         : std::move(hole));
    node.children.push_back(OutsideLoops([this] { return Block("endset"); }));
    return node;
  }

  Node Macro() {
    Node node = cursor_->Make(Node::Kind::kMacro, cursor_->Name());
    // Such a macro would see names of the loop or macro, which may not exist any more when it is called.
    if (scopes_ > 0) cursor_->Refuse("a macro within a loop or another macro is not supported");
    cursor_->Want("(");
    Parameters(&node);
    node.children.push_back(OutsideLoops([this] { return Block("endmacro"); }));
    return node;
  }

  Node CallBlock() {
    Node node = cursor_->Make(Node::Kind::kCallBlock);
    if (cursor_->TakeOperator("(")) Parameters(&node);
    node.children.push_back(ParseExpression(cursor_));
    if (cursor_->ok() && node.children[0].kind != Node::Kind::kCall) cursor_->Refuse("a call expected");
    node.children.push_back(OutsideLoops([this] { return Block("endcall"); }));
    return node;
  }

  // Parses a block that is rendered separately: a break within it cannot end the loop around it.
  template <typename Parse>
  Node OutsideLoops(const Parse& parse) {
    const int loops = std::exchange(loops_, 0);
    ++scopes_;
    Node node = parse();
    --scopes_;
    loops_ = loops;
    return node;
  }

  void Parameters(Node* node) {
    if (cursor_->TakeOperator(")")) return;
    do {
      const std::string name = cursor_->Name();
      node->names.push_back(name);
      if (cursor_->TakeOperator("=")) node->named.push_back({name, ParseExpression(cursor_)});
    } while (cursor_->MoreElements(")"));
  }

 private:
  TokenCursor* const cursor_;
  int loops_ = 0;   // number of enclosing loops that a break can end
  int scopes_ = 0;  // number of enclosing blocks with their own names
};

}  // namespace

absl::StatusOr<Node> ParseTemplate(absl::string_view source) {
  SYNCOPATE_ASSIGN_OR_RETURN(std::vector<Token> tokens, GetTokens(source));
  TokenCursor cursor(std::move(tokens));
  Node body = StatementRules(&cursor).Body({});
  if (!cursor.ok()) return cursor.status();
  return body;
}

}  // namespace syncopate::text::chat
