#include "tools/api/compatibility.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_replace.h"
#include "tests/unit/tools/api/proto_source.h"

namespace syncopate::api {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kBefore[] = R"(
  enum Color { COLOR_UNSPECIFIED = 0; COLOR_RED = 1; }
  message GetRequest {
    reserved 9;
    int64 number = 1;
    repeated string names = 2;
    map<string, int64> counts = 3;
    oneof which { Color color = 4; Inner inner = 5; }
    message Inner { bool flag = 1; }
  }
  message GetResponse {}
  service AService {
    rpc Get(GetRequest) returns (GetResponse);
    rpc Watch(GetRequest) returns (stream GetResponse);
  })";

TEST(CompatibilityTest, AdditionsAreNoBreakingChange) {
  std::string after =
      absl::StrReplaceAll(kBefore, {{"COLOR_RED = 1;", "COLOR_RED = 1; COLOR_BLUE = 2;"},
                                    {"int64 number = 1;", "int64 number = 1; string more = 10; message Another {}"},
                                    {"Inner inner = 5;", "Inner inner = 5; string third = 6;"},
                                    {"rpc Get(", "rpc Put(GetRequest) returns (GetResponse); rpc Get("}});
  EXPECT_THAT(BreakingChanges(Api(kBefore), Api(after + " message New {} service BService {}")), IsEmpty());
}

struct Change {
  const char* from;
  const char* to;
  const char* change;
};

class BreakingChangeTest : public ::testing::TestWithParam<Change> {};

TEST_P(BreakingChangeTest, IsReported) {
  const std::string after = absl::StrReplaceAll(kBefore, {{GetParam().from, GetParam().to}});
  ASSERT_NE(after, kBefore);
  EXPECT_THAT(BreakingChanges(Api(kBefore), Api(after)), ::testing::Contains(HasSubstr(GetParam().change)));
}

INSTANTIATE_TEST_SUITE_P(
    Changes, BreakingChangeTest,
    ::testing::Values(
        Change{"int64 number = 1;", "", "GetRequest.number: is gone"},
        Change{"int64 number = 1;", "reserved 1; reserved \"number\";", "GetRequest.number: is gone"},
        Change{"int64 number = 1;", "int64 number = 7;", "GetRequest.number: is gone"},
        Change{"int64 number = 1;", "int64 count = 1;", "the name was number and is count"},
        Change{"int64 number = 1;", "int32 number = 1;", "the type was int64 and is int32"},
        Change{"int64 number = 1;", "repeated int64 number = 1;", "the type was int64 and is repeated int64"},
        Change{"int64 number = 1;", "optional int64 number = 1;", "presence was not told and is told"},
        Change{"int64 number = 1;", "int64 number = 1 [json_name = \"n\"];", "the JSON name was number and is n"},
        Change{"repeated string names", "string names", "the type was repeated string and is string"},
        Change{"map<string, int64>", "map<string, double>",
               "the type was map<string, int64> and is map<string, double>"},
        Change{"oneof which { Color color = 4; Inner inner = 5; }", "oneof which { Color color = 4; } Inner inner = 5;",
               "its place was oneof which and is no oneof"},
        Change{"reserved 9;", "", "GetRequest.reserved 9: is gone"},
        Change{"COLOR_RED = 1;", "", "Color.COLOR_RED: is gone"},
        Change{"COLOR_RED = 1;", "COLOR_CRIMSON = 1;", "the name was COLOR_RED and is COLOR_CRIMSON"},
        Change{"COLOR_RED = 1;", "COLOR_RED = 2;", "Color.COLOR_RED: is gone"},
        Change{"rpc Get(GetRequest) returns (GetResponse);", "", "AService.Get: is gone"},
        Change{"returns (stream GetResponse)", "returns (GetResponse)",
               "the response was stream syncopate.v1.GetResponse and is syncopate.v1.GetResponse"},
        Change{"rpc Get(GetRequest)", "rpc Get(GetResponse)",
               "the request was syncopate.v1.GetRequest and is syncopate.v1.GetResponse"},
        Change{"service AService", "service BService", "AService: is gone"}));

TEST(CompatibilityTest, AMessageThatIsGoneIsReportedOnceAndWhatUsedItBesides) {
  EXPECT_THAT(BreakingChanges(Api("message A {} message B { A a = 1; }"), Api("message B { B a = 1; }")),
              ElementsAre(HasSubstr("A: is gone"), HasSubstr("the type was syncopate.v1.A and is syncopate.v1.B")));
}

}  // namespace
}  // namespace syncopate::api
