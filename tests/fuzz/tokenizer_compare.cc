// usage: tokenizer_compare FOLDER ...       each with tokenizer.json and cases.jsonl (scripts/tokenizer_reference.py)
// Prints how many cases differ from the reference, and the first three of them. The exit code is 1 if any case differs.
#include <iostream>

#include "tests/support/tokenizer_cases.h"

namespace syncopate::testing {
namespace {

using text::tokenizer::Tokenizer;

// Returns -1 if the cases were not compared.
int CountDifferences(const std::string& folder, bool use_scanner) {
  const auto json = ReadFile(FileSystem::Real(), JoinPath(folder, "tokenizer.json"), 128 << 20);
  const auto cases = ReadTokenizerCases(JoinPath(folder, "cases.jsonl"));
  const auto tokenizer = json.ok() ? Tokenizer::Parse(*json, {}, {.use_scanner = use_scanner}) : json.status();
  if (!tokenizer.ok() || !cases.ok()) {
    std::cerr << folder << ": " << (tokenizer.ok() ? cases.status() : tokenizer.status()).message() << "\n";
    return -1;
  }
  const bool byte_level = json->find("<0x0A>") == std::string::npos;
  text::tokenizer::PieceCache cache;
  int differ = 0;
  for (const TokenizerCase& one : *cases) {
    const auto differences = Differences(**tokenizer, one, byte_level, &cache);
    if (!differences.empty() && ++differ <= 3) std::cerr << differences[0] << "\n";
  }
  std::cout << folder << (use_scanner ? "" : " (patterns)") << ": " << cases->size() << " cases, " << differ
            << " differ" << std::endl;
  return differ;
}

}  // namespace
}  // namespace syncopate::testing

int main(int argc, char** argv) {
  bool equal = argc > 1;
  for (int i = 1; i < argc; ++i) {
    for (const bool use_scanner : {true, false}) {
      if (syncopate::testing::CountDifferences(argv[i], use_scanner) != 0) equal = false;
    }
  }
  return equal ? 0 : 1;
}
