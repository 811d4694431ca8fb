#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "syncopate/v1/config.pb.h"

namespace syncopate::run {

struct ReplicaOptions {
  v1::RunConfig config;            // checked
  std::vector<std::string> words;  // the command line of a rollouter from which `config` was made
  std::string binary_dir;          // the folder of syncopate-rollouter
  std::ostream* err = nullptr;
};

// Runs the rollout.tensor_parallel ranks of one rollouter as child processes until they end (replica_ranks.h), and
// returns the exit code of the whole replica. Their output goes to this process's output. Rank 0 answers probes and
// signals like a rollouter of one rank; the other ranks answer nobody, and serve their metrics on a free port of the
// loopback address. No child is left when it returns, nor when this process is killed. Blocks; call it from the main
// thread, before other threads are started. May be the first process of a container.
int RunReplica(const ReplicaOptions& options);

}  // namespace syncopate::run
