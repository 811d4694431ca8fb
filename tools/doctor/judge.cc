#include "tools/doctor/judge.h"

#include <algorithm>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "services/config/ranks.h"

namespace syncopate::doctor {
namespace {

using Level = Finding::Level;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kGiB = int64_t{1} << 30;

// Memory of a daemon that links libtorch, with small weights (measured with the demo's model: 150 to 225 MiB).
constexpr int64_t kBytesPerDaemon = 256 * kMiB;
// A daemon opens a connection or two to each other daemon, its logs, and the descriptors of a sync.
constexpr int64_t kFewestOpenFiles = 256;
constexpr int64_t kEnoughOpenFiles = 4096;
constexpr int64_t kEnoughTasks = 1024;  // libtorch, gRPC and CUDA start dozens of threads in each daemon
constexpr int64_t kFewestFreeBytes = kGiB / 4;
constexpr int64_t kEnoughSharedMemory = kGiB;  // for NCCL between processes of one host
constexpr absl::Duration kSlowSync = absl::Milliseconds(20);
constexpr absl::Duration kSoon = absl::Hours(24 * 7);

std::string GiB(int64_t bytes) { return absl::StrFormat("%.1f GiB", static_cast<double>(bytes) / kGiB); }

// The number of processes with libtorch: the ranks of the trainer and of the rollouters.
int64_t Workers(const v1::RunConfig& config) {
  return config.trainer().world() + config.run().rollouters() * config.rollout().tensor_parallel();
}

bool UsesGpus(const v1::RunConfig& config) {
  auto gpu = [](const std::string& device) { return absl::StartsWith(device, "cuda"); };
  return gpu(config.train().device()) || gpu(config.rollout().device());
}

// The finding of one subject; its level is good until it is changed.
Finding GoodFinding(const std::string& subject, const std::string& looked_at, const std::string& found) {
  return {Level::kGood, subject, looked_at, found, ""};
}

Finding Unless(bool good, Level level, Finding finding, const std::string& remedy) {
  if (!good) {
    finding.level = level;
    finding.remedy = remedy;
  }
  return finding;
}

Finding Processors(const Machine& machine, const v1::RunConfig& config) {
  const double usable =
      machine.processor_quota > 0 ? std::min<double>(machine.processors, machine.processor_quota) : machine.processors;
  std::string found = absl::StrFormat("%g usable", usable);
  if (machine.processor_quota > 0) {
    absl::StrAppendFormat(&found, " (%d, under a quota of %g)", machine.processors, machine.processor_quota);
  }
  // Half is enough, because trainer and rollouters rarely all compute at once.
  const int64_t wanted = Workers(config) * config.run().threads();
  return Unless(usable >= 2 && usable >= static_cast<double>(wanted) / 2, Level::kWarning,
                GoodFinding("processors", "affinity and cgroup quota", found),
                absl::StrCat("trainer and rollouters need ", wanted,
                             "; they take turns and pauses get longer. Lower run.rollouters or run.threads, or give "
                             "more processors"));
}

Finding Memory(const Machine& machine, const v1::RunConfig& config) {
  // On the CPU a page of it is used when it is first written, and then kept; on a GPU all of it is pinned at the start.
  const int64_t swapped =
      config.run().rollouters() * config.rollout().tensor_parallel() * config::GetHostKvBytes(config.rollout());
  const int64_t wanted = kBytesPerDaemon * Workers(config) + swapped;
  const std::string of_it =
      swapped > 0 ? absl::StrCat(" (", GiB(swapped), " of it for rollout.host_kv_memory of all ranks)") : "";
  return Unless(machine.available_bytes >= wanted, Level::kBad,
                GoodFinding("memory", "MemAvailable and cgroup limit",
                            absl::StrCat(GiB(machine.available_bytes), " available of ", GiB(machine.memory_bytes))),
                absl::StrCat("trainer and rollouters, ", Workers(config), " processes, need ", GiB(wanted), of_it,
                             " and their weights besides; free memory, raise the limit or lower ",
                             swapped > 0 ? "rollout.host_kv_memory" : "run.rollouters"));
}

Finding OpenFiles(const Machine& machine) {
  const Finding finding = GoodFinding("open files", "limit of this process (ulimit -n)",
                                      absl::StrCat("soft ", machine.open_files, ", hard ", machine.open_files_hard));
  const std::string remedy = absl::StrCat("each daemon should have ", kEnoughOpenFiles, ": ulimit -n ",
                                          kEnoughOpenFiles, ", or LimitNOFILE= of its unit");
  if (machine.open_files < kFewestOpenFiles) return Unless(false, Level::kBad, finding, remedy);
  // Daemons raise the soft limit themselves, up to the hard one.
  const bool can_raise = std::max(machine.open_files, machine.open_files_hard) >= kEnoughOpenFiles;
  return Unless(can_raise, Level::kWarning, finding, remedy);
}

Finding Tasks(const Machine& machine) {
  const std::string found = machine.tasks > 0 ? absl::StrCat("at most ", machine.tasks) : "no limit";
  return Unless(machine.tasks == 0 || machine.tasks >= kEnoughTasks, Level::kWarning,
                GoodFinding("threads", "pids.max of the cgroup", found),
                absl::StrCat("daemons start dozens of threads each; raise it to ", kEnoughTasks,
                             " (kubelet podPidsLimit, docker --pids-limit)"));
}

Finding SharedMemory(const Machine& machine, const v1::RunConfig& config) {
  return Unless(!UsesGpus(config) || machine.shared_memory_bytes >= kEnoughSharedMemory, Level::kWarning,
                GoodFinding("shared memory", "/dev/shm", GiB(machine.shared_memory_bytes)),
                "NCCL moves weights through it between processes of one host: mount 1 GiB or more there (docker "
                "--shm-size, an emptyDir of medium Memory)");
}

Finding WallClock(const Machine& machine) {
  return Unless(
      machine.clock_synchronised, Level::kWarning,
      GoodFinding("clock", "kernel state (adjtimex)", machine.clock_synchronised ? "synchronised" : "not synchronised"),
      "certificates and the times of logs depend on it where there are several machines: run chrony or "
      "systemd-timesyncd");
}

std::vector<Finding> RunFolder(const FolderFacts& folder) {
  const Finding writable = GoodFinding("run directory", folder.path,
                                       folder.writable.ok() ? "writable" : std::string(folder.writable.message()));
  if (!folder.writable.ok()) {
    return {Unless(false, Level::kBad, writable, "set run.dir to a folder that this user may write in")};
  }
  const bool durable = folder.file_system != "tmpfs" && folder.file_system != "ramfs";
  const std::string kind = folder.file_system.empty() ? "unknown file system" : folder.file_system;
  return {writable,
          Unless(durable, Level::kWarning, GoodFinding("durability", folder.path, kind),
                 "what is on it is gone after a reboot, checkpoints too: set run.dir to a disk"),
          Unless(folder.free_bytes >= kFewestFreeBytes, Level::kBad,
                 GoodFinding("disk space", folder.path, absl::StrCat(GiB(folder.free_bytes), " free")),
                 "logs and checkpoints need room; free some, or set run.dir elsewhere"),
          Unless(folder.sync <= kSlowSync, Level::kWarning,
                 GoodFinding("disk sync", absl::StrCat("append and fsync in ", folder.path),
                             absl::StrFormat("%.2f ms", absl::ToDoubleMilliseconds(folder.sync))),
                 "every acknowledgement of a group waits for one: set run.dir to a local SSD")};
}

Finding Address(const AddressFacts& address) {
  const std::string found = address.status.ok() ? "usable" : std::string(address.status.message());
  return Unless(address.status.ok(), Level::kBad,
                GoodFinding("address", absl::StrCat(address.key, " = ", address.address), found),
                absl::StrCat("stop what uses it, or set ", address.key, " to another one; port 0 takes any free one"));
}

Finding Program(const ProgramFacts& program) {
  const std::string found = program.status.ok() ? "starts" : std::string(program.status.message());
  return Unless(program.status.ok(), Level::kBad, GoodFinding("program", program.path, found),
                "build or install all programs in one folder, with their libraries: scripts/build.sh, or the image");
}

// The highest N of "cuda:N" that the configuration names, or that a rank of the trainer uses; 0 for "cuda" with one
// rank.
int64_t HighestGpu(const v1::RunConfig& config) {
  int64_t highest = config.train().device() == "cuda" ? config.trainer().world() - 1 : 0;
  for (const std::string& device : {config.train().device(), config.rollout().device()}) {
    int64_t number = 0;
    if (absl::StartsWith(device, "cuda:") && absl::SimpleAtoi(device.substr(5), &number)) {
      highest = std::max(highest, number);
    }
  }
  return highest;
}

Finding Gpus(const GpuFacts& gpu, const v1::RunConfig& config) {
  std::vector<std::string> names;
  for (const Gpu& one : gpu.gpus) names.push_back(absl::StrCat(one.name, " of ", GiB(one.bytes)));
  std::string found = names.empty() ? std::string(gpu.library.message()) : absl::StrJoin(names, ", ");
  if (!gpu.kernel_driver.empty()) absl::StrAppend(&found, "; driver ", gpu.kernel_driver);
  const Finding finding = GoodFinding("GPUs", "the kernel's driver and libcuda.so.1", found);
  const bool enough = static_cast<int64_t>(gpu.gpus.size()) > HighestGpu(config);
  if (UsesGpus(config)) {
    return Unless(enough, Level::kBad, finding,
                  "train.device or rollout.device names a GPU that is not here, or there are more ranks than GPUs: "
                  "install the driver, give the container "
                  "its GPUs (nvidia-container-toolkit, nvidia.com/gpu), or set them to cpu or auto");
  }
  // A driver whose library does not work deserves a warning even if no GPU is requested.
  return Unless(gpu.kernel_driver.empty() || !gpu.gpus.empty(), Level::kWarning, finding,
                "the driver is loaded but its library finds no GPU: install the libcuda of the same version");
}

Finding Credential(const CredentialFacts& credential, absl::Time now) {
  std::string found = credential.status.ok() ? "usable" : std::string(credential.status.message());
  const bool soon = credential.expiry && *credential.expiry - now < kSoon;
  if (credential.expiry) {
    absl::StrAppend(&found, ", until ", absl::FormatTime("%Y-%m-%d", *credential.expiry, absl::UTCTimeZone()));
  }
  const Finding finding = GoodFinding("credentials", absl::StrCat("security.*, as ", credential.role), found);
  if (!credential.status.ok()) {
    return Unless(false, Level::kBad, finding, "see docs/security.md; scripts/make-certs.sh makes a working set");
  }
  return Unless(!soon, Level::kWarning, finding, "renew it; daemons take the new files without a restart");
}

}  // namespace

std::vector<Finding> Judge(const Machine& machine, const v1::RunConfig& config) {
  std::vector<Finding> findings = {
      Processors(machine, config),   Memory(machine, config), OpenFiles(machine), Tasks(machine),
      SharedMemory(machine, config), WallClock(machine)};
  for (Finding& finding : RunFolder(machine.run_folder)) findings.push_back(std::move(finding));
  for (const AddressFacts& address : machine.addresses) findings.push_back(Address(address));
  for (const ProgramFacts& program : machine.programs) findings.push_back(Program(program));
  findings.push_back(Gpus(machine.gpu, config));
  for (const CredentialFacts& credential : machine.credentials) {
    findings.push_back(Credential(credential, machine.now));
  }
  return findings;
}

}  // namespace syncopate::doctor
