#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace syncopate::bench {

// Adds `syncopate bench` to `app`. When the command line names it, sets *chosen to the function that carries it out and
// returns the process's exit code. Both must outlive the parsing.
void AddBenchCommand(CLI::App* app, std::function<int()>* chosen);

}  // namespace syncopate::bench
