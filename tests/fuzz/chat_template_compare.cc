// usage: chat_template_compare CASES.jsonl ...       (scripts/chat_template_reference.py fuzz), from where it was made
// Prints how many cases differ from the reference, and the first five of them. The exit code is 1 if any case differs.
#include <iostream>

#include "tests/support/template_cases.h"

int main(int argc, char** argv) {
  bool equal = argc > 1;
  for (int i = 1; i < argc; ++i) {
    const auto comparison = syncopate::testing::CompareTemplates(argv[i], "");
    if (!comparison.ok()) {
      std::cerr << comparison.status().message() << "\n";
      return 1;
    }
    const auto& differences = comparison->differences;
    for (size_t k = 0; k < std::min<size_t>(5, differences.size()); ++k) std::cerr << differences[k] << "\n";
    std::cout << argv[i] << ": " << comparison->cases << " cases, " << comparison->refused
              << " refused by the reference, " << differences.size() << " differ\n";
    equal = equal && differences.empty();
  }
  return equal ? 0 : 1;
}
