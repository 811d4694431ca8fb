#include "tools/api/reference.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/tools/api/proto_source.h"

namespace syncopate::api {
namespace {

using ::syncopate::testing::HasReason;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(ApiReferenceTest, TellsWhatTheCommentsTell) {
  const std::string text = ApiReference(Api(R"(
    service AService {
      // Gets <it>
      // all.
      rpc Get(GetRequest) returns (stream GetResponse);
    }
    message GetRequest {
      map<string, Inner> parts = 1;  // by name | place
      oneof which { int64 number = 2; }
      message Inner {}
    }
    // The answer.
    message GetResponse { Color color = 1; }
    enum Color {
      COLOR_UNSPECIFIED = 0;  // none
    })"));
  EXPECT_THAT(text, HasSubstr("### AService\n\nA file.\n"));
  EXPECT_THAT(text, HasSubstr("| `Get` | [GetRequest](#getrequest) | stream of [GetResponse](#getresponse) | "
                              "Gets \\<it\\> all. |"));
  EXPECT_THAT(text,
              HasSubstr("| 1 | `parts` | map of string to [GetRequest.Inner](#getrequestinner) | by name \\| place |"));
  EXPECT_THAT(text, HasSubstr("| 2 | `number` | int64 | one of `which`. |"));
  EXPECT_THAT(text, HasSubstr("#### GetRequest.Inner\n\nNo fields.\n"));
  EXPECT_THAT(text, HasSubstr("#### GetResponse\n\nThe answer.\n"));
  EXPECT_THAT(text, HasSubstr("| 0 | `COLOR_UNSPECIFIED` | none |"));
  EXPECT_THAT(text, Not(HasSubstr("PartsEntry")));
}

TEST(ReplaceGeneratedTest, KeepsWhatIsAboveTheMark) {
  const std::string above = absl::StrCat("# Title\n\nWords.\n\n", kGeneratedBelow, "\n");
  EXPECT_EQ(ReplaceGenerated(above + "\nold\n", "new\n").value(), above + "\nnew\n");
  EXPECT_THAT(ReplaceGenerated("# Title\n", "new\n"), HasReason("NO_MARK"));
}

}  // namespace
}  // namespace syncopate::api
