#pragma once

#include <string>

#include "text/template/syntax.h"
#include "text/template/value.h"

namespace syncopate::text::chat {

struct Scope;

struct Function {
  enum class Kind { kMacro, kGlobal, kMethod } kind = Kind::kGlobal;
  std::string name;             // kGlobal and kMethod
  Value self;                   // kMethod: the value whose method it is
  const Node* macro = nullptr;  // kMacro: the node with the parameters
  const Node* body = nullptr;   // kMacro
  Scope* scope = nullptr;       // kMacro: names that the macro sees; outlives all places that can store the function
};

}  // namespace syncopate::text::chat
