#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace syncopate::services {

// Adds `control` to `syncopate bench`; as AddBenchCommand.
void AddControlBenchCommand(CLI::App* bench, std::function<int()>* chosen);

}  // namespace syncopate::services
