#include "base/daemon/exit_code.h"

#include <gtest/gtest.h>

#include "base/status.h"

namespace syncopate::daemon {
namespace {

int GetCode(const char* reason) { return ToExitCode(Error(absl::StatusCode::kInternal, reason, "an error")); }

TEST(ExitCodeTest, SaysWhetherAnotherStartMayDoBetter) {
  EXPECT_EQ(ToExitCode(absl::OkStatus()), 0);
  EXPECT_EQ(GetCode("STOPPED"), 0);
  for (const char* reason : {"BAD_CONFIG", "BAD_COMMAND_LINE", "CONFIG_NOT_READABLE", "INSECURE_BIND", "BAD_SECURITY",
                             "BAD_KEY", "FIXED_KEY", "NO_CUDA", "MODEL_MISMATCH", "RUN_DIR_TAKEN"}) {
    EXPECT_EQ(GetCode(reason), 2) << reason;
  }
  for (const char* reason : {"FENCED", "REPLACED"}) EXPECT_EQ(GetCode(reason), 3) << reason;
  for (const char* reason : {"SYNCHRONIZER_LOST", "NOT_JOINED", "ABORT_STUCK", "COPY_STUCK", "DISK_STUCK",
                             "VERSION_ORDER", "DIGEST_CHANGED", "SYNC_FAILING"}) {
    EXPECT_EQ(GetCode(reason), 4) << reason;
  }
}

TEST(ExitCodeTest, EverythingElseIsAFailure) {
  for (const char* reason : {"EVICTED", "NON_FINITE", "ADDRESS_IN_USE", "WRONG_RUN", "NEVER_HEARD_OF"}) {
    EXPECT_EQ(GetCode(reason), 1) << reason;
  }
  EXPECT_EQ(ToExitCode(absl::InternalError("without a reason")), 1);
}

}  // namespace
}  // namespace syncopate::daemon
