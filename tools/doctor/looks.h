#pragma once

#include <string>

#include "tools/doctor/machine.h"

// The parts of InspectMachine, each of which looks at one kind of thing.
namespace syncopate::doctor {

// Processors, memory, limits, shared memory and clock.
void InspectLimits(Machine* machine);

// The folder in which `path` is or would be made.
FolderFacts InspectFolder(const std::string& path);

// Listens at `address` for a moment. For a name or an address of another machine (`ours` is false): whether it
// resolves.
AddressFacts InspectAddress(const std::string& key, const std::string& address, bool ours);

// Runs `path` with `arguments` to its end, output and errors in the file `log`. FAILED_PRECONDITION (reason
// DOES_NOT_START) with what it said first if it is not there, ends badly or takes too long.
absl::Status RunToEnd(const std::string& path, const std::vector<std::string>& arguments, const std::string& log);

// Starts `path` with --help, which every daemon answers at once.
ProgramFacts InspectProgram(const std::string& path);

GpuFacts InspectGpus();

}  // namespace syncopate::doctor
