#pragma once

#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace syncopate {

// Facts about an error for programs, in addition to the message for people.
using ErrorMetadata = std::map<std::string, std::string>;

// An error with a machine-readable reason, e.g. ("FENCED", "a newer trainer holds epoch 4", {{"epoch", "4"}}).
// The reason is UPPER_SNAKE_CASE and becomes google.rpc.ErrorInfo.reason on the wire; the message names what is wrong
// and the remedy. `code` must not be kOk.
absl::Status Error(absl::StatusCode code, absl::string_view reason, absl::string_view message,
                   const ErrorMetadata& metadata = {});

// The reason given to Error(), or "" for OK and for statuses made without one.
std::string ErrorReason(const absl::Status& status);

// The metadata given to Error(), or an empty map.
ErrorMetadata ErrorDetails(const absl::Status& status);

// The same error with `context: ` put before its message; reason and metadata are kept. OK stays OK.
absl::Status Annotate(const absl::Status& status, absl::string_view context);

// Prints file, line, condition and detail to standard error, and aborts the process. Called by SYNCOPATE_CHECK only.
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition, const std::string& detail);

}  // namespace syncopate

#define SYNCOPATE_CONCAT_INNER_(a, b) a##b
#define SYNCOPATE_CONCAT_(a, b) SYNCOPATE_CONCAT_INNER_(a, b)

// NOLINTBEGIN(bugprone-macro-parentheses): a declaration and a statement's result cannot stand in parentheses.
// Returns the error of a Status expression to the caller.
#define SYNCOPATE_RETURN_IF_ERROR(expression)              \
  do {                                                     \
    absl::Status syncopate_status_ = (expression);         \
    if (!syncopate_status_.ok()) return syncopate_status_; \
  } while (false)

// SYNCOPATE_ASSIGN_OR_RETURN(auto x, MakeX()): unwraps a StatusOr or returns its error.
#define SYNCOPATE_ASSIGN_OR_RETURN(declaration, expression) \
  SYNCOPATE_ASSIGN_OR_RETURN_(SYNCOPATE_CONCAT_(syncopate_or_, __LINE__), declaration, expression)
#define SYNCOPATE_ASSIGN_OR_RETURN_(result, declaration, expression) \
  auto result = (expression);                                        \
  if (!result.ok()) return result.status();                          \
  declaration = *std::move(result)
// NOLINTEND(bugprone-macro-parentheses)

// For bugs only: a condition that no input and no peer can make false.
#define SYNCOPATE_CHECK(condition)                                                  \
  do {                                                                              \
    if (!(condition)) ::syncopate::CheckFailed(__FILE__, __LINE__, #condition, ""); \
  } while (false)
