#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <new>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace syncopate::model {

// An exception of libtorch, or of an allocator under it, as a status for the edge of a component: RESOURCE_EXHAUSTED
// (reason OUT_OF_MEMORY) or INTERNAL (reason TORCH). `what` names the operation that failed.
inline absl::Status TorchError(const std::exception& error, const std::string& what) {
  const auto* torch = dynamic_cast<const c10::Error*>(&error);
  const bool memory = dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
                      dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
  const std::string message =
      absl::StrCat(what, ": ", torch != nullptr ? torch->what_without_backtrace() : error.what());
  return memory ? Error(absl::StatusCode::kResourceExhausted, "OUT_OF_MEMORY", message)
                : Error(absl::StatusCode::kInternal, "TORCH", message);
}

}  // namespace syncopate::model
