#include "tools/cli/json_schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <string>

#include "services/config/duration.h"
#include "services/config/schema.h"

namespace syncopate::cli {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;

class ConfigJsonSchemaTest : public ::testing::Test {
 protected:
  const Json& Key(const std::string& section, const std::string& key) {
    return schema_.at("properties").at(section).at("properties").at(key);
  }

  const Json schema_ = Json::parse(ConfigJsonSchema());
};

TEST_F(ConfigJsonSchemaTest, HasEveryKeyAndRefusesAnyOther) {
  size_t keys = 0;
  for (const auto& [name, section] : schema_["properties"].items()) {
    EXPECT_EQ(section["additionalProperties"], false) << name;
    keys += section["properties"].size();
  }
  EXPECT_EQ(keys, config::ConfigSchema().keys().size());
  EXPECT_EQ(schema_["additionalProperties"], false);
}

TEST_F(ConfigJsonSchemaTest, SaysOfAKeyWhatItMayBeMeansAndIs) {
  EXPECT_EQ(Key("run", "rollouters"), Json::parse(R"({"description": "rollouter processes that `syncopate run` starts",
                            "type": "integer", "minimum": 1, "maximum": 64, "default": 2})"));
  EXPECT_EQ(Key("train", "beta2")["maximum"], 0.999999);
  EXPECT_EQ(Key("train", "learning_rate")["anyOf"],
            Json::parse(R"([{"type": "number", "minimum": 1e-12, "maximum": 1}, {"enum": [0, "auto"]}])"));
  EXPECT_EQ(Key("model", "qk_norm")["type"], "boolean");
  EXPECT_EQ(Key("model", "qk_norm")["default"], true);
  EXPECT_THAT(Key("reward", "undecided")["enum"], ElementsAre("wrong", "fail"));
  EXPECT_EQ(Key("run", "name")["default"], "run");
}

TEST_F(ConfigJsonSchemaTest, ADurationIsWhatTheParserTakes) {
  const std::regex required(Key("sync", "heartbeat")["pattern"].get<std::string>());
  for (const char* text : {"1s", "250ms", "1.5h", ".5s", "1h30m", "10us", "2m0.5s"}) {
    EXPECT_TRUE(config::ParseDuration(text).ok()) << text;
    EXPECT_TRUE(std::regex_search(text, required)) << text;
  }
  for (const char* text : {"", "10", "s", "1 s", "1d", "soon", "inf", "1s."}) {
    EXPECT_FALSE(config::ParseDuration(text).ok()) << text;
    EXPECT_FALSE(std::regex_search(text, required)) << text;
  }
  EXPECT_TRUE(std::regex_search("", std::regex(Key("run", "duration")["pattern"].get<std::string>())))
      << "empty is this key's default";
}

}  // namespace
}  // namespace syncopate::cli
