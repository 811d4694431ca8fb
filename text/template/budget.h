#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "base/status.h"

namespace syncopate::text::chat {

// Resources that one rendering of an untrusted template may use.
struct TemplateLimits {
  int64_t steps = 2'000'000;        // steps of evaluation, and steps for lists and mappings by their length
  int64_t output_bytes = 16 << 20;  // bytes of the rendered text
  int64_t made_bytes = 256 << 20;   // bytes of all intermediate strings
  int depth = 500;                  // nesting of expressions, blocks and macro calls together
};

// The resources that a rendering has used, and its first error. The first error is kept, and all later results are
// discarded, so that evaluation needs no error path of its own and ends at the next step.
class RenderBudget {
 public:
  explicit RenderBudget(const TemplateLimits& limits) : limits_(limits) {}

  const TemplateLimits& limits() const { return limits_; }
  bool ok() const { return status_.ok(); }
  const absl::Status& status() const { return status_; }

  // Sets the error INVALID_ARGUMENT, reason TEMPLATE_FAILED: the template asks for something impossible.
  void Fail(absl::string_view what);
  // Count steps or bytes; beyond a limit they call Exhaust(). Return false if there is an error.
  bool TakeSteps(int64_t steps = 1);
  bool TakeBytes(int64_t bytes);
  // Sets the error RESOURCE_EXHAUSTED, reason TEMPLATE_TOO_COSTLY.
  void Exhaust(absl::string_view what);

 private:
  const TemplateLimits limits_;
  int64_t steps_ = 0, bytes_ = 0;
  absl::Status status_;
};

}  // namespace syncopate::text::chat
