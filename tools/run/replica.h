#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "syncopate/v1/config.pb.h"

namespace syncopate::run {

struct ReplicaOptions {
  v1::RunConfig config;            // checked
  std::vector<std::string> words;  // a rollouter's command line, of which `config` is
  std::string binary_dir;          // where syncopate-rollouter is
  std::ostream* err = nullptr;
};

// Runs the rollout.tensor_parallel ranks of one rollouter as child processes until they end (replica_ranks.h), and returns
// the exit code of the whole. What they say goes where this process's output goes. Rank 0 is what a rollouter of one rank
// would be, also for probes and signals; the others answer nobody, and have their metrics on a free port of the loopback
// address. No child is left when it returns, nor when this process is killed. Blocks; call it from the main thread, before
// others were started. May be the first process of a container.
int RunReplica(const ReplicaOptions& options);

}  // namespace syncopate::run
