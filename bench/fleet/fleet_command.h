#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace syncopate::bench {

// Adds `fleet` to `bench`: what a weight sync of many replicas takes of the synchronizer and of the plan, without
// bytes, processes or sockets. `chosen` gets what to run if it was given.
void AddFleetBenchCommand(CLI::App* bench, std::function<int()>* chosen);

}  // namespace syncopate::bench
