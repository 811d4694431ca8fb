#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace syncopate::bench {

// A signal to one process of a benchmark, and its time.
struct BenchFault {
  enum class Kind : uint8_t { kNone, kKill, kStop };  // SIGKILL; SIGSTOP (only a synchronizer is continued)
  Kind kind = Kind::kNone;
  std::string target;              // "source", "receiver" or "synchronizer"; of several, the last one
  std::string stage = "transfer";  // "prepare", "transfer" or "install" of the sync that it interrupts
};

// The case that `syncopate bench sync` measures: a model's shapes, the ranks of a trainer, and a number of replicas
// with tensor-parallel ranks that receive.
struct SyncCase {
  std::string model = "qwen2.5-0.5b";
  int32_t layers = 0;  // of the model; 0: all. A trainer needs 16 bytes a parameter and more
  int32_t lora = 0;    // rank of adapters on all projections, which the measured syncs bring; 0: all weights
  int32_t sources = 1;
  int32_t replicas = 1;
  int32_t tensor_parallel = 1;
  std::string transport = "auto";
  std::string install = "remap";  // "remap" or "in_place"; with `cpu` "remap" stands for an exchange of pointers
  int32_t syncs = 12;             // measured ones, of each replica
  int32_t warmup = 2;             // before the measured ones
  int32_t answers = 16;           // that one step trains on
  int32_t answer_tokens = 0;      // of each; 0: 128 on GPUs, 16 on the CPU
  bool cpu = false;               // host memory instead of GPUs
  // Rollouters generate all the time, for the trainer and for a client that counts; otherwise they stand still while
  // the trainer makes a step.
  bool decode = true;
  // Nothing runs during a sync: rollouters wait for the version before they generate, and the trainer for their
  // answers. Excludes `decode`.
  bool calm = false;
  bool late_joiner = false;                 // one more replica is started after the measured syncs
  bool ceiling = true;                      // also measure the links without our protocol
  BenchFault fault;                         // comes in a sync after the measured ones
  absl::Duration limit = absl::Minutes(5);  // for everything

  int32_t receivers() const { return replicas * tensor_parallel; }
  // INVALID_ARGUMENT reason BAD_CASE, naming the option and its allowed values. Does not check models and layouts.
  absl::Status Validate() const;
  // "qwen2.5-7b, 2 sources -> 2 replicas x TP1, ipc"
  std::string ToString() const;
};

// The GPU, out of `devices`, on which the daemons place each process: sources first, then receivers by replica and rank
// (a late joiner's last), in rotation. Without devices all are 0.
std::vector<int> PlaceProcesses(const SyncCase& sync_case, int devices);

// The layout descriptors (synchronizer/plan/layout_text.h) of the two sides, as the daemons announce them.
std::string MakeSourceLayout(const SyncCase& sync_case);
std::string MakeReceiverLayout(const SyncCase& sync_case);

}  // namespace syncopate::bench
