#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

namespace syncopate::bench {

// Adds `generate` to `syncopate bench`; see AddBenchCommand. Its program is in `binary_dir`.
void AddGenerateBenchCommand(CLI::App* bench, const std::string& binary_dir, std::function<int()>* chosen);

}  // namespace syncopate::bench
