#pragma once

#include <string>
#include <vector>

#include "services/config/problem.h"
#include "tools/k8s/document.h"

namespace syncopate::k8s {

// Why rendered objects and a run configuration do not fit each other; empty if they do. For every container of a role:
// the configuration with the container's arguments is one that the daemon takes, its device is there, the files that it
// reads and the folder of its checkpoints are under mounts, its certificates are of its trust domain, and pods live
// longer than run.grace.
std::vector<config::ConfigProblem> CheckFit(const Objects& objects, const std::string& config,
                                            const std::string& source);

// The pod templates of an object: of its own, of a JobSet's jobs, of a LeaderWorkerSet's workers.
std::vector<const Document*> PodTemplatesOf(const Document& object);

}  // namespace syncopate::k8s
