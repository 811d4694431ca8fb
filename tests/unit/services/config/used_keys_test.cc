// Every key has an effect: a daemon reads it, or it has only one value and any other is an error.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/config/run_config.h"
#include "services/config/schema.h"

namespace syncopate::config {
namespace {

using ::testing::IsEmpty;

// Sources of the daemons, and of the tools that start them.
std::vector<std::string> Sources() {
  std::vector<std::string> sources;
  for (const char* folder : {"services", "tools"}) {
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(std::filesystem::path(SYNCOPATE_SOURCE_DIR) / folder)) {
      const std::string path = entry.path().string();
      const bool judges_only = absl::EndsWith(path, "/config/rules.cc");
      if (entry.path().extension() != ".cc" || judges_only) continue;
      std::ostringstream text;
      text << std::ifstream(path).rdbuf();
      sources.push_back(text.str());
    }
  }
  return sources;
}

// Whether some file accesses the section and reads the key from a message.
bool IsRead(const ConfigKey& key, const std::vector<std::string>& sources) {
  const std::string section = absl::StrCat(".", key.section->name(), "()");
  const std::vector<std::string> in_hand = {absl::StrCat("config", section), absl::StrCat("config_", section),
                                            absl::StrCat("config()", section),
                                            absl::StrCat("v1::", key.field->containing_type()->name())};
  const std::string getter = absl::StrCat(".", key.field->name(), "()");
  for (const std::string& source : sources) {
    const bool has_section =
        absl::c_any_of(in_hand, [&](const auto& words) { return absl::StrContains(source, words); });
    if (has_section && absl::StrContains(source, getter)) return true;
  }
  return false;
}

TEST(UsedKeysTest, EveryKeyIsReadByADaemon) {
  const std::vector<std::string> sources = Sources();
  ASSERT_GT(sources.size(), 50u);
  const ConfigSchema schema;
  std::vector<std::string> unread;
  for (const ConfigKey& key : schema.keys()) {
    if (!IsRead(key, sources)) unread.push_back(key.path);
  }
  EXPECT_THAT(unread, IsEmpty());
}

}  // namespace
}  // namespace syncopate::config
