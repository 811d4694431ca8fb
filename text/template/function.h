#pragma once

#include <string>

#include "text/template/syntax.h"
#include "text/template/value.h"

namespace syncopate::text::chat {

struct Scope;

struct Function {
  enum class Kind { kMacro, kGlobal, kMethod } kind = Kind::kGlobal;
  std::string name;             // of kGlobal and kMethod
  Value self;                   // of kMethod
  const Node* macro = nullptr;  // its parameters
  const Node* body = nullptr;   // of kMacro
  Scope* scope = nullptr;       // the names that the macro sees; outlives every place that the function can be kept in
};

}  // namespace syncopate::text::chat
