#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace syncopate::bench {

// Adds `train` to `syncopate bench`; see AddBenchCommand.
void AddTrainBenchCommand(CLI::App* bench, std::function<int()>* chosen);

}  // namespace syncopate::bench
