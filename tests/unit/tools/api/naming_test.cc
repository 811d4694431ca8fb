#include "tools/api/naming.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/unit/tools/api/proto_source.h"

namespace syncopate::api {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(NamingTest, ACleanFileHasNoBreaches) {
  EXPECT_THAT(NamingBreaches(Api(R"(
    enum AckResult { ACK_RESULT_UNSPECIFIED = 0; ACK_RESULT_OK_2 = 1; }
    enum HTTPCode { HTTP_CODE_UNSPECIFIED = 0; }
    message GetThingRequest { oneof which { AckResult last_result = 1; HTTPCode code = 2; } map<string, int64> m = 3; }
    message ThingServiceGetThingResponse {}
    service ThingService { rpc GetThing(GetThingRequest) returns (ThingServiceGetThingResponse); })")),
              IsEmpty());
}

struct NamingCase {
  const char* rule;
  const char* source;
};

class NamingRuleTest : public ::testing::TestWithParam<NamingCase> {};

TEST_P(NamingRuleTest, FindsTheBreachAndNothingElse) {
  EXPECT_THAT(NamingBreaches(Api(GetParam().source)), ElementsAre(HasSubstr(GetParam().rule)));
}

INSTANTIATE_TEST_SUITE_P(
    Rules, NamingRuleTest,
    ::testing::Values(
        NamingCase{"MESSAGE_PASCAL_CASE", "message bad_name {}"},
        NamingCase{"FIELD_LOWER_SNAKE_CASE", "message A { int64 Bad = 1; }"},
        NamingCase{"FIELD_LOWER_SNAKE_CASE", "message A { message B { int64 bad__name = 1; } }"},
        NamingCase{"ONEOF_LOWER_SNAKE_CASE", "message A { oneof Bad { int64 a = 1; } }"},
        NamingCase{"ENUM_PASCAL_CASE", "enum color { COLOR_UNSPECIFIED = 0; }"},
        NamingCase{"ENUM_VALUE_UPPER_SNAKE_CASE", "enum Color { COLOR_UNSPECIFIED = 0; COLOR_Red = 1; }"},
        NamingCase{"ENUM_VALUE_PREFIX", "enum Color { COLOR_UNSPECIFIED = 0; RED = 1; }"},
        NamingCase{"ENUM_VALUE_PREFIX", "enum DType { DTYPE_UNSPECIFIED = 0; }"},
        NamingCase{"ENUM_ZERO_VALUE_SUFFIX", "enum Color { COLOR_NONE = 0; }"},
        NamingCase{"ENUM_NO_ALLOW_ALIAS",
                   "enum Color { option allow_alias = true; COLOR_UNSPECIFIED = 0; COLOR_RED = 1; COLOR_ROSY = 1; }"},
        NamingCase{"SERVICE_SUFFIX", "service Thing {}"}, NamingCase{"SERVICE_PASCAL_CASE", "service thingService {}"},
        NamingCase{
            "RPC_REQUEST_STANDARD_NAME",
            "message Query {} message GetResponse {} service AService { rpc Get(Query) returns (GetResponse); }"},
        NamingCase{
            "RPC_RESPONSE_STANDARD_NAME",
            "message GetRequest {} message Answer {} service AService { rpc Get(GetRequest) returns (Answer); }"}),
    [](const auto& info) { return std::string(info.param.rule) + "_" + std::to_string(info.index); });

TEST(NamingTest, ACallAndItsMessagesAreInPascalCase) {
  EXPECT_THAT(
      NamingBreaches(Api("message getRequest {} message getResponse {} "
                         "service AService { rpc get(getRequest) returns (getResponse); }")),
      ElementsAre(HasSubstr("MESSAGE_PASCAL_CASE"), HasSubstr("MESSAGE_PASCAL_CASE"), HasSubstr("RPC_PASCAL_CASE")));
}

TEST(NamingTest, AMessageOfTwoCallsIsABreach) {
  EXPECT_THAT(NamingBreaches(Api(R"(
    message GetRequest {} message GetResponse {}
    service AService { rpc Get(GetRequest) returns (GetResponse); }
    service BService { rpc Get(GetRequest) returns (BServiceGetResponse); }
    message BServiceGetResponse {})")),
              ElementsAre(HasSubstr("RPC_REQUEST_RESPONSE_UNIQUE")));
}

TEST(NamingTest, AFileIsWhereItsPackageSays) {
  EXPECT_THAT(NamingBreaches(Api("", "elsewhere/Bad-Name.proto")),
              ElementsAre(HasSubstr("FILE_LOWER_SNAKE_CASE"), HasSubstr("PACKAGE_DIRECTORY_MATCH")));
}

TEST(NamingTest, APackageHasAVersion) {
  auto api =
      ApiDescriptors::From(Compile({{"syncopate/a.proto", "syntax = \"proto3\"; package syncopate;"}}), "syncopate");
  ASSERT_TRUE(api.ok());
  EXPECT_THAT(NamingBreaches(*api), ElementsAre(HasSubstr("PACKAGE_VERSION_SUFFIX")));
}

TEST(NamingTest, AFileSaysItsSyntax) {
  auto api = ApiDescriptors::From(Compile({{"syncopate/v1/a.proto", "package syncopate.v1;"}}));
  ASSERT_TRUE(api.ok());
  EXPECT_THAT(NamingBreaches(*api), ElementsAre(HasSubstr("SYNTAX_SPECIFIED")));
}

TEST(NamingTest, AnImportIsUsed) {
  const std::string head = "syntax = \"proto3\"; package syncopate.v1; ";
  auto api = ApiDescriptors::From(Compile({{"syncopate/v1/b.proto", head + "message Other {}"},
                                           {"syncopate/v1/a.proto", head + "import \"syncopate/v1/b.proto\";"}}));
  ASSERT_TRUE(api.ok());
  EXPECT_THAT(NamingBreaches(*api), ElementsAre(HasSubstr("IMPORT_USED")));
}

}  // namespace
}  // namespace syncopate::api
