#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "syncopate/v1/config.pb.h"

namespace syncopate::doctor {

struct FolderFacts {
  std::string path;         // the nearest existing folder
  absl::Status writable;    // whether a file could be made, written, synced and removed there
  std::string file_system;  // "ext4", "tmpfs", ...; "" if unknown
  int64_t free_bytes = 0;
  absl::Duration sync;  // median of a small append with fsync
};

struct AddressFacts {
  std::string key;      // the configuration key that names it
  std::string address;  // host:port
  absl::Status status;  // whether it can be listened on now; of another machine: whether its name has an address
};

struct ProgramFacts {
  std::string path;
  absl::Status status;  // whether it starts: it exists, and so do its libraries
};

struct Gpu {
  std::string name;
  int64_t bytes = 0;
};

struct GpuFacts {
  std::string kernel_driver;  // "580.65.06"; "" if none is loaded
  absl::Status library;       // whether libcuda.so.1 exists and finds GPUs
  std::vector<Gpu> gpus;
};

struct CredentialFacts {
  std::string role;
  absl::Status status;
  std::optional<absl::Time> expiry;
};

// The facts that a run depends on and that its configuration does not show. Plain data.
struct Machine {
  int processors = 0;          // usable by this process
  double processor_quota = 0;  // of the control group, in processors; 0: no quota
  int64_t memory_bytes = 0;
  int64_t available_bytes = 0;  // now, within the control group's limit
  int64_t open_files = 0;       // soft limit
  int64_t open_files_hard = 0;
  int64_t tasks = 0;                // limit of the control group; 0: no limit
  int64_t shared_memory_bytes = 0;  // size of /dev/shm
  bool clock_synchronised = false;
  absl::Time now;
  FolderFacts run_folder;
  std::vector<AddressFacts> addresses;
  std::vector<ProgramFacts> programs;
  GpuFacts gpu;
  std::vector<CredentialFacts> credentials;  // empty without TLS and tokens
};

// Collects the facts for a run of `config` whose daemons are in `binary_folder`. Writes and removes one small file
// where the run directory would be, binds and closes the ports, starts each daemon with --help, opens the driver's
// library. Blocks for a few seconds at most. A fact that cannot be read keeps its default, or its error is in a status:
// never fails.
Machine InspectMachine(const v1::RunConfig& config, const std::string& binary_folder);

}  // namespace syncopate::doctor
