#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

// The arguments of `syncopate data convert`: the command line checks them and passes them to the program that links
// Arrow.
namespace syncopate::data {

inline constexpr char kConvertProgram[] = "syncopate-data-convert";
// Exit codes besides 0.
inline constexpr int kConvertFailed = 1;
inline constexpr int kConvertUsage = 2;

struct ConvertArguments {
  std::vector<std::string> files;
  std::string output;
};

inline void AddConvertOptions(CLI::App* app, ConvertArguments* arguments) {
  app->footer(
      "Exit codes: 0 done; 1 a file cannot be read or the output not written, with the reason; 2 wrong command line.");
  app->add_option("FILES", arguments->files, "Parquet files, one after the other")->type_name("FILE")->required();
  app->add_option("--output,-o", arguments->output, "File of JSON lines, which is not there yet")
      ->type_name("FILE")
      ->required();
}

}  // namespace syncopate::data
