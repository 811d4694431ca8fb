#pragma once

#include <gmock/gmock.h>

#include <string>

#include "base/status.h"

namespace syncopate::testing {

inline const absl::Status& MakeStatus(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& MakeStatus(const absl::StatusOr<T>& result) {
  return result.status();
}

// EXPECT_THAT(call(), IsOk()): an absl::Status or StatusOr without an error.
MATCHER(IsOk, "is OK") {
  *result_listener << MakeStatus(arg).ToString();
  return MakeStatus(arg).ok();
}

// EXPECT_THAT(call(), HasReason("NO_SPACE")): an error made by syncopate::Error with that reason.
MATCHER_P(HasReason, reason, "is an error with reason " + std::string(reason)) {
  *result_listener << MakeStatus(arg).ToString() << " with reason '" << ErrorReason(MakeStatus(arg)) << "'";
  return !MakeStatus(arg).ok() && ErrorReason(MakeStatus(arg)) == reason;
}

// EXPECT_THAT(call(), HasMessage(HasSubstr("model.safetensors"))): matches the error's message.
MATCHER_P(HasMessage, inner, "has a message that " + ::testing::DescribeMatcher<std::string>(inner)) {
  return ::testing::ExplainMatchResult(inner, std::string(MakeStatus(arg).message()), result_listener);
}

}  // namespace syncopate::testing
