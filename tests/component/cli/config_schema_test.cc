// `syncopate config schema`, read by a public validator.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/config/field_value.h"
#include "services/config/run_config.h"
#include "services/config/schema.h"
#include "tests/support/process.h"
#include "tests/support/status_matchers.h"
#include "tools/cli/json_schema.h"

namespace syncopate::cli {
namespace {

using ::syncopate::testing::ExitStatus;
using ::syncopate::testing::IsOk;
using ::syncopate::testing::Process;
using ::syncopate::testing::TempDir;

// Prints a JSON list: for each YAML text of the second file, whether the schema in the first file accepts it. Numbers
// are those of YAML 1.2, as editors read them: 1e-6 is a number.
constexpr char kValidate[] = R"(
import json, re, sys, yaml, jsonschema
number = re.compile(r'^[-+]?([.][0-9]+|[0-9]+([.][0-9]*)?)([eE][-+]?[0-9]+)?$')
yaml.SafeLoader.add_implicit_resolver('tag:yaml.org,2002:float', number, list('-+.0123456789'))
schema = json.load(open(sys.argv[1]))
jsonschema.Draft202012Validator.check_schema(schema)
validator = jsonschema.Draft202012Validator(schema)
print(json.dumps([validator.is_valid(yaml.safe_load(text)) for text in json.load(open(sys.argv[2]))]))
)";

class ConfigSchemaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (Python({"-c", "import jsonschema, yaml"}) != 0) {
      GTEST_SKIP() << SYNCOPATE_PYTHON " has no jsonschema and pyyaml; scripts/bootstrap.sh --tests installs them";
    }
  }

  int Python(const std::vector<std::string>& args) {
    log_ = absl::StrCat(folder_.path(), "/", ++commands_, ".log");
    auto process = Process::Start({.program = SYNCOPATE_PYTHON, .args = args, .log_path = log_});
    if (!process.ok()) return -1;
    auto exit = (*process)->WaitExit(absl::Minutes(1));
    return exit.ok() && exit->signal == 0 ? exit->code : -1;
  }

  std::vector<bool> Verdicts(const std::vector<std::string>& texts) {
    const std::string schema = folder_.path() + "/schema.json", cases = folder_.path() + "/cases.json";
    std::ofstream(schema) << cli::ConfigJsonSchema();
    std::ofstream(cases) << nlohmann::json(texts).dump();
    const int code = Python({"-c", kValidate, schema, cases});
    std::stringstream said;
    said << std::ifstream(log_).rdbuf();
    EXPECT_EQ(code, 0) << said.str();
    return code == 0 ? nlohmann::json::parse(said.str()).get<std::vector<bool>>() : std::vector<bool>();
  }

  TempDir folder_;
  std::string log_;
  int commands_ = 0;
};

TEST_F(ConfigSchemaTest, TakesEveryExampleAndTheDefaultsWrittenOut) {
  std::vector<std::string> texts = {
      "", "run:\n", config::ToYaml(config::ParseRunConfig("", "f").config, config::YamlComments::kDocs)};
  for (const auto& entry : std::filesystem::directory_iterator(SYNCOPATE_SOURCE_DIR "/deploy/examples")) {
    if (entry.path().extension() != ".yaml") continue;
    std::stringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    texts.push_back(text.str());
  }
  EXPECT_GT(texts.size(), 3u);
  EXPECT_EQ(Verdicts(texts), std::vector<bool>(texts.size(), true));
}

TEST_F(ConfigSchemaTest, RefusesWhatTheParserRefusesOfASingleKeyAndNothingElse) {
  std::vector<std::string> texts = {"nonsense: {}", "run: 7", "run: {stpes: 5}", "run: []", "[1, 2]", "run: {steps: }"};
  const config::ConfigSchema schema;
  for (const config::ConfigKey& key : schema.keys()) {
    for (const char* value : {"0", "1", "-3", "2.5", "1000000001", "true", "word", "auto", "10s", "\"\"", "[1]"}) {
      texts.push_back(absl::StrCat(key.section->name(), ": {", key.field->name(), ": ", value, "}"));
    }
  }
  const std::vector<bool> taken = Verdicts(texts);
  ASSERT_EQ(taken.size(), texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    const config::ParsedRunConfig parsed = config::ParseRunConfig(texts[i], "f");
    // A problem that only a combination of keys causes has a message of its own, not the key's.
    const bool key_is_right = std::none_of(parsed.problems.begin(), parsed.problems.end(), [&](const auto& problem) {
      const config::ConfigKey* key = schema.Find(problem.key);
      return key == nullptr || problem.expected == key->Expected();
    });
    EXPECT_EQ(taken[i], key_is_right) << texts[i] << "\n" << config::ToString(parsed.problems);
  }
}

}  // namespace
}  // namespace syncopate::cli
