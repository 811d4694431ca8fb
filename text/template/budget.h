#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "base/status.h"

namespace syncopate::text::chat {

// What a stranger's template may use, of one rendering.
struct TemplateLimits {
  int64_t steps = 2'000'000;        // of evaluation, and of work on lists and mappings by their length
  int64_t output_bytes = 16 << 20;  // of the rendered text
  int64_t made_bytes = 256 << 20;   // of all strings that are made on the way
  int depth = 500;                  // of evaluation: nested expressions, blocks and macro calls together
};

// What a rendering has used up, and its first error, which sticks: whatever goes on after it is thrown away, so that
// evaluation needs no error path of its own and ends at the next step.
class RenderBudget {
 public:
  explicit RenderBudget(const TemplateLimits& limits) : limits_(limits) {}

  const TemplateLimits& limits() const { return limits_; }
  bool ok() const { return status_.ok(); }
  const absl::Status& status() const { return status_; }

  // INVALID_ARGUMENT, reason TEMPLATE_FAILED: what the template asks for cannot be done.
  void Fail(absl::string_view what);
  // False once anything has failed; RESOURCE_EXHAUSTED, reason TEMPLATE_TOO_COSTLY beyond a limit.
  bool TakeSteps(int64_t steps = 1);
  bool TakeBytes(int64_t bytes);
  void Exhaust(absl::string_view what);

 private:
  const TemplateLimits limits_;
  int64_t steps_ = 0, bytes_ = 0;
  absl::Status status_;
};

}  // namespace syncopate::text::chat
