#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace syncopate::bench {

// Adds `syncopate bench` to `app`; when the command line names it, sets *chosen to what carries it out and returns the
// process's exit code. Both outlive the parsing.
void AddBenchCommand(CLI::App* app, std::function<int()>* chosen);

}  // namespace syncopate::bench
