// syncopate-generate OPTIONS: what `syncopate generate` starts, which links no libtorch itself.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "absl/strings/str_format.h"
#include "services/telemetry/table.h"
#include "tools/generate/generator.h"
#include "tools/generate/options.h"

namespace syncopate::generate {
namespace {

void Print(const Trajectory& answer) {
  telemetry::Table table({{"TOKEN", telemetry::Table::Align::kRight}, {"LOG-PROB", telemetry::Table::Align::kRight}});
  for (size_t i = 0; i < answer.tokens.size(); ++i) {
    table.AddRow({std::to_string(answer.tokens[i]), absl::StrFormat("%.6f", answer.logprobs[i])});
  }
  std::fputs(table.ToString().c_str(), stdout);
}

void PrintJson(const Trajectory& answer) {
  nlohmann::ordered_json json;
  json["ids"] = answer.tokens;
  json["logprobs"] = answer.logprobs;
  std::printf("%s\n", json.dump().c_str());
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
  line.options.threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const absl::StatusOr<Trajectory> answer = GenerateFromFolder(line.options);
  if (!answer.ok()) {
    std::fprintf(stderr, "%s\n", std::string(answer.status().message()).c_str());
    return kGenerateFailed;
  }
  line.json ? PrintJson(*answer) : Print(*answer);
  return 0;
}

}  // namespace
}  // namespace syncopate::generate

int main(int argc, char** argv) { return syncopate::generate::Main(argc, argv); }
