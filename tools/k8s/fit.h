#pragma once

#include <string>
#include <vector>

#include "services/config/problem.h"
#include "tools/k8s/document.h"

namespace syncopate::k8s {

// The reasons why rendered objects and a run configuration do not fit together; empty if they fit. For every container
// of a role: the daemon must accept the configuration with the container's arguments, the configured device must be
// there, the files that it reads and the checkpoint folder must be under mounts, its certificates must be of its trust
// domain, and pods must get more time to end than run.grace.
std::vector<config::ConfigProblem> CheckFit(const Objects& objects, const std::string& config,
                                            const std::string& source);

// The pod templates of an object: its own, those of a JobSet's jobs, those of a LeaderWorkerSet's workers.
std::vector<const Document*> MakePodTemplates(const Document& object);

}  // namespace syncopate::k8s
