#include <cstdint>
#include <iostream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/file_system.h"
#include "text/tokenizer/tokenizer.h"
#include "tools/cli/command.h"

namespace syncopate::cli {
namespace {

using text::tokenizer::PieceCache;
using text::tokenizer::Tokenizer;

struct TokenizeArguments {
  std::string folder;
  bool decode = false, add_special = false, skip_special = false;
};

absl::StatusOr<std::vector<int32_t>> ParseIds(const std::string& line) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  std::vector<int32_t> ids;
  bool good = json.is_array();
  for (size_t i = 0; good && i < json.size(); ++i) {
    const uint64_t* id = json[i].get_ptr<const uint64_t*>();
    good = id != nullptr && *id <= static_cast<uint64_t>(std::numeric_limits<int32_t>::max());
    if (good) ids.push_back(static_cast<int32_t>(*id));
  }
  if (good) return ids;
  return Error(absl::StatusCode::kInvalidArgument, "BAD_IDS", "not a JSON list of token ids, such as [1, 42]");
}

absl::StatusOr<std::string> Converted(const Tokenizer& tokenizer, const TokenizeArguments& arguments,
                                      const std::string& line, PieceCache* cache) {
  if (arguments.decode) {
    SYNCOPATE_ASSIGN_OR_RETURN(std::vector<int32_t> ids, ParseIds(line));
    return tokenizer.Decode(ids, arguments.skip_special);
  }
  SYNCOPATE_ASSIGN_OR_RETURN(std::vector<int32_t> ids, tokenizer.Encode(line, arguments.add_special, cache));
  return absl::StrCat("[", absl::StrJoin(ids, ","), "]");
}

int ConvertLines(const TokenizeArguments& arguments) {
  const auto tokenizer = Tokenizer::Load(FileSystem::Real(), arguments.folder);
  if (!tokenizer.ok()) {
    std::cerr << tokenizer.status().message() << "\n";
    return 1;
  }
  PieceCache cache;
  int64_t number = 0;
  for (std::string line; std::getline(std::cin, line);) {
    ++number;
    const auto converted = Converted(**tokenizer, arguments, line, &cache);
    if (!converted.ok()) {
      std::cout.flush();
      std::cerr << "line " << number << ": " << converted.status().message() << "\n";
      return 1;
    }
    std::cout << *converted << "\n";
  }
  return 0;
}

}  // namespace

void AddTokenizeCommand(CLI::App* app, Command* chosen) {
  auto arguments = std::make_shared<TokenizeArguments>();
  CLI::App* tokenize = app->add_subcommand(
      "tokenize", "Read lines of text and print the token ids of each as a JSON list, or the other way round");
  tokenize->add_option("DIR", arguments->folder, "model directory, with a tokenizer.json")
      ->required()
      ->type_name(kFolderType);
  CLI::Option* decode = tokenize->add_flag("--decode", arguments->decode, "read JSON lists and print their text");
  tokenize
      ->add_flag("--add-special-tokens", arguments->add_special,
                 "put round each line what the tokenizer puts round a text, such as a begin of text")
      ->excludes(decode);
  tokenize->add_flag("--skip-special-tokens", arguments->skip_special, "leave special tokens out of the text")
      ->needs(decode);
  tokenize->callback([=] { *chosen = [=] { return ConvertLines(*arguments); }; });
}

}  // namespace syncopate::cli
