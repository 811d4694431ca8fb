#include "synchronizer/plan/payload.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace syncopate::synchronizer {
namespace {

TEST(PayloadTest, TheBaseIsSentIffItIsNotThereOrASleepReallyFreedIt) {
  for (bool present : {false, true}) {
    for (int level : {0, 1, 2}) {
      for (bool frees : {false, true}) {
        for (bool slept : {false, true}) {
          SCOPED_TRACE(absl::StrCat("present ", present, ", level ", level, ", frees ", frees, ", slept ", slept));
          EXPECT_EQ(NeedsBase({present, 1, level, frees, slept}), !present || (level == 2 && frees && slept));
        }
      }
    }
  }
}

}  // namespace
}  // namespace syncopate::synchronizer
