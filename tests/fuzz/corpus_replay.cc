// Runs every input of the corpus once. An input is in the corpus because it found a bug or reaches code that others do
// not.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "base/clock.h"
#include "tests/fuzz/fuzz_target.h"

namespace syncopate::testing {
namespace {

class CorpusTest : public ::testing::TestWithParam<std::pair<const std::string, FuzzTarget>> {};

TEST_P(CorpusTest, EveryKeptInputEndsSoonWithoutACrash) {
  const auto& [name, target] = GetParam();
  int inputs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(SYNCOPATE_CORPUS) + "/" + name)) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string input((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    SCOPED_TRACE(entry.path().string());
    const absl::Time begin = Clock::Real()->Now();
    EXPECT_EQ(target(reinterpret_cast<const uint8_t*>(input.data()), input.size()), 0);
    EXPECT_LT(Clock::Real()->Now() - begin, absl::Seconds(10));
    ++inputs;
  }
  EXPECT_GT(inputs, 5) << "the corpus was not found";
}

INSTANTIATE_TEST_SUITE_P(Targets, CorpusTest, ::testing::ValuesIn(FuzzTargets()),
                         [](const auto& info) { return info.param.first; });

// The number of fuzz sources: a source that is not linked is not replayed.
TEST(FuzzTargetsTest, AllAreHere) {
  int sources = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(SYNCOPATE_CORPUS) + "/..")) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with("_fuzz.cc")) ++sources;
  }
  EXPECT_EQ(FuzzTargets().size(), static_cast<size_t>(sources));
}

}  // namespace
}  // namespace syncopate::testing
