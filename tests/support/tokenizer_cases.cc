#include "tests/support/tokenizer_cases.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/utf8.h"

namespace syncopate::testing {
namespace {

using text::tokenizer::Tokenizer;

std::string Streamed(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                     std::vector<std::string>* differences) {
  auto stream = tokenizer.Stream(/*skip_special_tokens=*/true);
  std::string text;
  for (const int32_t id : ids) {
    const std::string part = stream.Add(id);
    if (!IsUtf8(part)) differences->push_back("a stream shows half a character");
    text += part;
  }
  return text + stream.End();
}

void Compare(absl::string_view what, const std::string& ours, const std::string& reference,
             std::vector<std::string>* differences) {
  if (ours == reference) return;
  differences->push_back(
      absl::StrCat(what, ": '", absl::CHexEscape(ours), "' instead of '", absl::CHexEscape(reference), "'"));
}

}  // namespace

absl::StatusOr<std::vector<TokenizerCase>> ReadTokenizerCases(const std::string& path) {
  std::ifstream file(path);
  std::vector<TokenizerCase> cases;
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) return absl::InvalidArgumentError(absl::StrCat(path, " holds a line that is no case"));
    TokenizerCase one;
    one.has_text = json.contains("text");
    one.text = json.value("text", "");
    one.ids = json["ids"].get<std::vector<int32_t>>();
    one.decoded = json["decoded"].get<std::string>();
    one.skipped = json["skipped"].get<std::string>();
    cases.push_back(std::move(one));
  }
  if (cases.empty()) return absl::NotFoundError(absl::StrCat("no cases in ", path));
  return cases;
}

std::vector<std::string> Differences(const Tokenizer& tokenizer, const TokenizerCase& expected, bool byte_level,
                                     text::tokenizer::PieceCache* cache) {
  std::vector<std::string> differences;
  if (expected.has_text) {
    const auto ids = tokenizer.Encode(expected.text, /*add_special_tokens=*/true, cache);
    if (!ids.ok()) {
      differences.push_back(std::string(ids.status().message()));
    } else if (*ids != expected.ids) {
      differences.push_back(absl::StrCat("'", absl::CHexEscape(expected.text), "' gives [", absl::StrJoin(*ids, " "),
                                         "] instead of [", absl::StrJoin(expected.ids, " "), "]"));
    }
  }
  Compare("decoded", tokenizer.Decode(expected.ids, false), expected.decoded, &differences);
  Compare("without special tokens", tokenizer.Decode(expected.ids, true), expected.skipped, &differences);
  const std::string streamed = Streamed(tokenizer, expected.ids, &differences);
  if (expected.has_text || byte_level) Compare("as a stream", streamed, expected.skipped, &differences);
  return differences;
}

}  // namespace syncopate::testing
