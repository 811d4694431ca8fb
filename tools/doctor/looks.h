#pragma once

#include <string>

#include "tools/doctor/machine.h"

// The parts of InspectMachine, each for one kind of fact.
namespace syncopate::doctor {

// Processors, memory, limits, shared memory and clock.
void InspectLimits(Machine* machine);

// Facts about the folder that contains `path`, or would contain it.
FolderFacts InspectFolder(const std::string& path);

// Listens at `address` for a moment. For a host name, or an address of another machine (`ours` is false), only checks
// that it resolves.
AddressFacts InspectAddress(const std::string& key, const std::string& address, bool ours);

// Runs `path` with `arguments` to its end, with output and errors in the file `log`. FAILED_PRECONDITION (reason
// DOES_NOT_START) with its first words if it does not exist, ends badly or takes too long.
absl::Status RunToEnd(const std::string& path, const std::vector<std::string>& arguments, const std::string& log);

// Starts `path` with --help, which every daemon answers at once.
ProgramFacts InspectProgram(const std::string& path);

GpuFacts InspectGpus();

}  // namespace syncopate::doctor
