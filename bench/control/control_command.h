#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace syncopate::bench {

// Adds `control` to `syncopate bench`; see AddBenchCommand.
void AddControlBenchCommand(CLI::App* bench, std::function<int()>* chosen);

}  // namespace syncopate::bench
