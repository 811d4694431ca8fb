#pragma once

#include <string>
#include <vector>

#include "text/template/value.h"

namespace syncopate::text::chat {

struct NamedNode;

// A template as a tree.
struct Node {
  enum class Kind {
    // Statements.
    kBody,         // children one after the other
    kText,         // `name` is the text
    kPrint,        // [expression]
    kIf,           // [condition, body, else]
    kFor,          // [sequence, condition, body, else]; names: the targets; bit 0 of shape: has the condition
    kSet,          // [expression]; names: the targets, "a" or "a.b"
    kSetBlock,     // [filters of the hole, body]; names
    kMacro,        // [body]; names: parameters; named: defaults
    kCallBlock,    // [call, body]; parameters as in kMacro
    kFilterBlock,  // [filters of the hole, body]
    kGeneration,   // [body]
    kBreak,
    kContinue,
    // Expressions.
    kLiteral,    // value
    kName,       // name
    kList,       // elements
    kTuple,      // elements
    kDict,       // key, value, key, value ...
    kAttribute,  // [object]; name
    kItem,       // [object, key]
    kSlice,      // [object, begin, end, step]; bits 0 to 2 of shape: which bounds are given
    kCall,       // [function, positional ...]; named: named arguments, and "*" and "**" for a spread list or mapping
    kFilter,     // [value, positional ...]; name, named
    kTest,       // as kFilter
    kSign,       // [operand]; name: + or -
    kBinary,     // [left, right]; name: the operator
    kAnd,
    kOr,
    kNot,
    kChoice,  // [condition, then, else]
  };
  Kind kind = Kind::kBody;
  int line = 0;
  int shape = 0;
  std::string name;
  Value value;
  std::vector<Node> children;
  std::vector<NamedNode> named;
  std::vector<std::string> names;
};

struct NamedNode {
  std::string name;
  Node node;
};

// The name under which the text of a filter block or set block is passed to its filters; no template can write it.
inline constexpr char kHole[] = "$text";

}  // namespace syncopate::text::chat
