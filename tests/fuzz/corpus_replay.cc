// Every input that is kept, once: those that were worth keeping found something, or lead somewhere.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/fuzz/fuzz_target.h"

namespace {

TEST(CorpusTest, EveryKeptInputEndsWithoutACrash) {
  int inputs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(SYNCOPATE_CORPUS)) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string input((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    SCOPED_TRACE(entry.path().string());
    EXPECT_EQ(LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size()), 0);
    ++inputs;
  }
  EXPECT_GT(inputs, 5) << "the corpus was not found";
}

}  // namespace
