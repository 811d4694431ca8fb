// syncopate-generate OPTIONS: the program behind `syncopate generate`, which links no libtorch itself.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>

#include "absl/strings/str_format.h"
#include "base/console/text_table.h"
#include "base/log.h"
#include "tools/generate/generator.h"
#include "tools/generate/options.h"

namespace syncopate::generate {
namespace {

void Print(const Trajectory& answer) {
  TextTable table({{"TOKEN", TextTable::Align::kRight}, {"LOG-PROB", TextTable::Align::kRight}});
  for (size_t i = 0; i < answer.tokens.size(); ++i) {
    table.AddRow({std::to_string(answer.tokens[i]), absl::StrFormat("%.6f", answer.logprobs[i])});
  }
  std::fputs(table.ToString().c_str(), stdout);
}

void PrintJson(const Trajectory& answer, const std::optional<std::string>& text) {
  nlohmann::ordered_json json;
  if (text.has_value()) json["text"] = *text;
  json["ids"] = answer.tokens;
  json["logprobs"] = answer.logprobs;
  std::printf("%s\n", json.dump().c_str());
}

absl::Status Answer(GenerateCommandLine line) {
  GenerateOptions& options = line.options;
  const bool is_text = options.prompt_ids.empty();
  if (is_text) {
    SYNCOPATE_ASSIGN_OR_RETURN(options.prompt_ids, IdsOfText(options.folder, line.text, !line.plain));
  }
  options.threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  SYNCOPATE_ASSIGN_OR_RETURN(const Trajectory answer, GenerateFromFolder(options));
  std::optional<std::string> text;
  if (is_text) {
    SYNCOPATE_ASSIGN_OR_RETURN(text, TextOfIds(options.folder, answer.tokens));
  }
  if (line.json) {
    PrintJson(answer, text);
  } else if (text.has_value()) {
    std::printf("%s\n", text->c_str());
  } else {
    Print(answer);
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  CLI::App app("Answer one prompt with a model directory", "syncopate generate");
  GenerateCommandLine line;
  AddGenerateOptions(&app, &line);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kGenerateUsage;
  }
  // Only warnings are logged; without a file this cannot fail.
  InitLogging({.role = "generate", .minimum = Severity::kWarning}).IgnoreError();
  const absl::Status done = Answer(line);
  if (done.ok()) return 0;
  std::fprintf(stderr, "%s\n", std::string(done.message()).c_str());
  return kGenerateFailed;
}

}  // namespace
}  // namespace syncopate::generate

int main(int argc, char** argv) { return syncopate::generate::Main(argc, argv); }
