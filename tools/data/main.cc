// syncopate-data-convert FILE.parquet ... --output FILE.jsonl: the program behind `syncopate data convert`.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "tools/data/options.h"
#include "tools/data/parquet_rows.h"

int main(int argc, char** argv) {
  using namespace syncopate::data;
  CLI::App app("Turn parquet files into one file of JSON lines", "syncopate data convert");
  ConvertArguments arguments;
  AddConvertOptions(&app, &arguments);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kConvertUsage;
  }
  const absl::StatusOr<int64_t> rows = ConvertToJsonl(arguments.files, arguments.output);
  if (!rows.ok()) {
    std::fprintf(stderr, "%s\n", std::string(rows.status().message()).c_str());
    return kConvertFailed;
  }
  std::printf("%lld rows in %s\n", static_cast<long long>(*rows), arguments.output.c_str());
  return 0;
}
