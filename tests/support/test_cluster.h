#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tests/support/process.h"
#include "tools/k8s/document.h"

namespace syncopate::testing {

// One container's probe, asked as a node asks: over the pod's address, at its period, counting failures in a row.
class Probe {
 public:
  Probe() = default;
  // `probe` is the manifest's; FAILED_PRECONDITION for one that is not httpGet on a named port of `container`.
  static absl::StatusOr<Probe> Parse(const k8s::Document& probe, const k8s::Document& container);

  // Asks if it is time to. `address` is the pod's.
  void AskIfDue(absl::Time now, const std::string& address);
  int64_t failures() const { return failures_; }                // in a row, up to now
  bool passed() const { return asked_ > 0 && failures_ == 0; }  // the last time
  bool exhausted() const { return failures_ >= threshold_; }
  const std::string& last_answer() const { return last_answer_; }

 private:
  std::string path_;
  int64_t port_ = 0;
  absl::Duration period_;
  int64_t threshold_ = 3;
  absl::Time next_ = absl::InfinitePast();
  int64_t asked_ = 0;
  int64_t failures_ = 0;
  std::string last_answer_;
};

// A pod that runs, or has ended.
struct TestPod {
  std::string name;  // "rollouter-1-3"
  std::string role;
  int64_t index = 0;    // among those of its role that run     // its container's name
  std::string address;  // "10.88.0.13"
  std::unique_ptr<Process> process;
  absl::Duration grace;  // terminationGracePeriodSeconds
  Probe startup, liveness, readiness;
  bool started = false;             // the startup probe has passed
  bool was_ready = false;           // the readiness probe has passed at least once
  bool would_be_restarted = false;  // startup or liveness probe failed as often as it may
};

// Rendered manifests carried out on this machine: a node's network in a namespace of its own, where each pod has an
// address and a name; containers with the command, arguments, environment, mounts, user and read-only root that their
// manifests say, probed and ended as a node does it. The image is this machine's libraries and the binaries of this
// build. Claims are folders that outlive their pods.
//
// Secrets are among the objects, as `stringData`.
//
// What a manifest says and this cannot do is an error, not left out, except resources, affinity and seccomp profiles.
// Single-threaded: Create moves the calling thread into the node's network.
class TestCluster {
 public:
  // UNAVAILABLE (reason NO_NAMESPACES) where this process may not make namespaces and mounts.
  static absl::StatusOr<std::unique_ptr<TestCluster>> Create(std::vector<k8s::Document> objects,
                                                             const std::string& folder);

  // Starts one pod of the workload of `role`. Pods that have ended stay where they are.
  absl::StatusOr<TestPod*> StartPod(const std::string& role);
  // Starts the number of pods that the workload of each role says.
  absl::Status StartAll();

  const std::vector<std::unique_ptr<TestPod>>& pods() const { return pods_; }
  // Where the claim of a role is on this machine.
  std::string ClaimFolder(const std::string& role) const;

  // Probes all pods until `done`, or `timeout`; false in the latter case.
  bool ProbeUntil(absl::Duration timeout, const std::function<bool()>& done);

  // SIGTERM, then as long as the manifest gives; DEADLINE_EXCEEDED after that.
  absl::StatusOr<ExitStatus> Terminate(TestPod* pod);

 private:
  TestCluster(std::vector<k8s::Document> objects, std::string folder)
      : objects_(std::move(objects)), folder_(std::move(folder)) {}

  absl::StatusOr<const k8s::Document*> MakeWorkload(const std::string& role) const;
  absl::StatusOr<k8s::Document> GetSpec(const k8s::Document& pod, const TestPod& made);
  absl::StatusOr<k8s::Document> MakeMounts(const k8s::Document& pod, const k8s::Document& container,
                                           const TestPod& made);
  absl::StatusOr<std::string> VolumeFolder(const k8s::Document& volume, const TestPod& made);
  absl::Status WriteProjected(const k8s::Document& projected, const std::string& folder) const;
  const k8s::Document* Find(const std::string& kind, const std::string& name) const;
  int64_t FreeIndex(const std::string& role) const;
  // What the cluster's name service would answer: Services, by the pods that they select.
  absl::Status WriteHosts() const;

  const std::vector<k8s::Document> objects_;
  const std::string folder_;
  std::vector<std::unique_ptr<TestPod>> pods_;
};

}  // namespace syncopate::testing
