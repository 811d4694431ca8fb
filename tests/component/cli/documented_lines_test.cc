// The command line accepts every line of README and docs that calls `syncopate`. Lines are parsed, and not run.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tools/cli/command.h"

namespace syncopate::cli {
namespace {

namespace fs = std::filesystem;

struct Line {
  std::string where;  // for example "docs/data.md:20"
  std::string text;   // for example "syncopate config check mine.yaml"
  bool whole = true;  // false: named in a sentence, where arguments may be left out
};

// Replaces the parts that a page leaves to the reader, and the grammar of usage lines, by words that can be parsed:
// "[--quiet | --json] [--web [PORT]] N ..." becomes "--quiet --web 8080 1".
std::string FillIn(std::string text) {
  static const auto* const alternatives = new std::regex(R"(\[([^\[\]|]*) \|[^\[\]]*\])");
  text = std::regex_replace(text, *alternatives, "$1");
  static const auto* const optional = new std::regex(R"(\[([^\[\]]*)\])");
  for (int depth = 0; depth < 3; ++depth) text = std::regex_replace(text, *optional, "$1");
  text = std::regex_replace(text, std::regex(R"( \.\.\.)"), "");
  text = std::regex_replace(text, std::regex(R"(\bPORT\b)"), "8080");
  text = std::regex_replace(text, std::regex(R"(--model (NAME|M)\b)"), "--model tiny");
  text = std::regex_replace(text, std::regex(R"(--overlay NAME\b)"), "--overlay cpu-demo");
  return std::regex_replace(text, std::regex(R"((--[a-z-]+) N\b)"), "$1 1");
}

// The words that a shell makes of a line, up to the end of the command.
std::vector<std::string> Words(const std::string& text) {
  std::vector<std::string> words;
  std::string word;
  char quote = 0;
  bool begun = false;
  auto end = [&] {
    if (begun) words.push_back(word);
    word.clear();
    begun = false;
  };
  for (const char c : text) {
    if (quote != 0) {
      if (c == quote)
        quote = 0;
      else
        word += c;
    } else if (c == '"' || c == '\'') {
      quote = c;
      begun = true;
    } else if (c == ' ') {
      end();
    } else if ((c == '#' && !begun) || absl::StrContains("|<>&;", std::string(1, c))) {
      break;
    } else {
      word += c;
      begun = true;
    }
  }
  end();
  return words;
}

// Collects the lines of blocks, indented or between fences, joined where a backslash continues them, and the text
// between backticks in sentences.
std::vector<Line> MakeLines(const fs::path& path, const std::string& name) {
  static const auto* const call = new std::regex(R"(^\s*(?:\$ )?(?:[./\w]*/)?syncopate(?:\.sh)? (.*)$)");
  static const auto* const named = new std::regex(R"(`(?:[./\w]*/)?syncopate ([^`]*)`)");
  std::vector<Line> lines;
  std::ifstream file(path);
  std::string text, continued;
  bool fenced = false;
  for (int number = 1; std::getline(file, text); ++number) {
    const std::string where = absl::StrCat(name, ":", number);
    if (absl::StartsWith(text, "```")) {
      fenced = !fenced;
      continue;
    }
    if (!continued.empty()) text = absl::StrCat(continued, " ", text);
    continued.clear();
    const bool block = fenced || absl::StartsWith(text, "    ");
    std::smatch match;
    if (!block) {
      for (auto it = std::sregex_iterator(text.begin(), text.end(), *named); it != std::sregex_iterator(); ++it) {
        lines.push_back({where, (*it)[1].str(), /*whole=*/false});
      }
    } else if (!absl::StrContains(text, "─") && std::regex_match(text, match, *call)) {  // drawings are skipped
      if (absl::EndsWith(text, "\\")) {
        continued = text.substr(0, text.size() - 1);
      } else {
        lines.push_back({where, match[1].str()});
      }
    }
  }
  return lines;
}

std::vector<Line> AllLines() {
  const fs::path root = SYNCOPATE_SOURCE_DIR;
  std::vector<fs::path> pages = {root / "README.md", root / "python/README.md"};
  for (const auto& entry : fs::directory_iterator(root / "docs")) {
    if (entry.path().extension() == ".md") pages.push_back(entry.path());
  }
  std::sort(pages.begin(), pages.end());
  std::vector<Line> lines;
  for (const fs::path& page : pages) {
    for (Line& line : MakeLines(page, fs::relative(page, root).string())) lines.push_back(std::move(line));
  }
  return lines;
}

// Returns why the command line refuses a line; "" if it accepts it.
std::string Refusal(const std::string& text, bool whole) {
  CLI::App app;
  Command chosen;
  AddCommands(&app, "syncopate", &chosen);
  std::vector<std::string> words = Words(FillIn(text));
  std::reverse(words.begin(), words.end());  // CLI11 takes words in reverse order
  try {
    app.parse(words);
  } catch (const CLI::Success&) {  // the line has --help
    return "";
  } catch (const CLI::RequiredError& error) {
    const std::string unknown = UnknownCommand(app);
    if (unknown.empty() && !whole) return "";
    return unknown.empty() ? error.what() : unknown;
  } catch (const CLI::ArgumentMismatch& error) {  // a sentence names an option without its value
    return whole ? error.what() : "";
  } catch (const CLI::ParseError& error) {
    return error.what();
  }
  return "";
}

TEST(DocumentedLinesTest, TheCommandLineTakesEveryLineOfThePages) {
  int blocks = 0;
  for (const Line& line : AllLines()) {
    blocks += line.whole;
    EXPECT_EQ(Refusal(line.text, line.whole), "") << line.where << ": syncopate " << line.text;
  }
  EXPECT_GT(blocks, 50);  // the pages have this many blocks, so the search works
}

TEST(DocumentedLinesTest, ALineThatTheCommandLineDoesNotTakeIsFound) {
  EXPECT_NE(Refusal("run mine.yaml --stepps 3", true), "");
  EXPECT_NE(Refusal("config chekc mine.yaml", true), "");
  EXPECT_NE(Refusal("ctl lie-down", false), "");
  EXPECT_NE(Refusal("export DIR", true), "");
  EXPECT_EQ(Refusal("export DIR", false), "");
  EXPECT_EQ(Refusal("run CONFIG [section.key=value ...] [--steps N] [--quiet | --json] [--web [PORT]]   # a run", true),
            "");
}

}  // namespace
}  // namespace syncopate::cli
