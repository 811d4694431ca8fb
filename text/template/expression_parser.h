#pragma once

#include "text/template/token_cursor.h"

// Parses expressions of Jinja by recursive descent. The cursor keeps the first error.
namespace syncopate::text::chat {

// One expression, or a tuple of expressions separated by commas. `choice`: the expressions may contain an inline if.
Node ParseTuple(TokenCursor* cursor, bool choice);
Node ParseExpression(TokenCursor* cursor);
// Parses the filters and tests that are applied to `node`. `bar_taken`: the next token is a filter's name.
Node ParseFilters(TokenCursor* cursor, Node node, bool bar_taken);

}  // namespace syncopate::text::chat
