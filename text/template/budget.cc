#include "text/template/budget.h"

#include "absl/strings/str_cat.h"

namespace syncopate::text::chat {

void RenderBudget::Fail(absl::string_view what) {
  status_.Update(Error(absl::StatusCode::kInvalidArgument, "TEMPLATE_FAILED", absl::StrCat("chat template: ", what)));
}

void RenderBudget::Exhaust(absl::string_view what) {
  status_.Update(Error(absl::StatusCode::kResourceExhausted, "TEMPLATE_TOO_COSTLY",
                       absl::StrCat("chat template: ", what, "; the template or the messages are too large")));
}

bool RenderBudget::TakeSteps(int64_t steps) {
  steps_ += steps;
  if (steps_ > limits_.steps) Exhaust("it takes too many steps");
  return ok();
}

bool RenderBudget::TakeBytes(int64_t bytes) {
  bytes_ += bytes;
  if (bytes_ > limits_.made_bytes) Exhaust("it makes too much text");
  return ok();
}

}  // namespace syncopate::text::chat
