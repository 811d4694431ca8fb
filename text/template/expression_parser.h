#pragma once

#include "text/template/token_cursor.h"

// Expressions of Jinja by recursive descent. Errors stick in the cursor.
namespace syncopate::text::chat {

// Expressions with commas between them are a tuple. `choice`: they may be such with an inline if.
Node ParseTuple(TokenCursor* cursor, bool choice);
Node ParseExpression(TokenCursor* cursor);
// What filters and tests make of `node`. `bar_taken`: a filter's name comes at once.
Node ParseFilters(TokenCursor* cursor, Node node, bool bar_taken);

}  // namespace syncopate::text::chat
