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

// The probe of one container, sent as a node sends it: to the pod's address, at its period, counting failures in a row.
class Probe {
 public:
  Probe() = default;
  // `probe` is the probe of the manifest; FAILED_PRECONDITION unless it is httpGet on a named port of `container`.
  static absl::StatusOr<Probe> Parse(const k8s::Document& probe, const k8s::Document& container);

  // Sends the probe if it is due. `address` is the address of the pod.
  void AskIfDue(absl::Time now, const std::string& address);
  int64_t failures() const { return failures_; }                // number of failures in a row until now
  bool passed() const { return asked_ > 0 && failures_ == 0; }  // the last probe succeeded
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

// A pod that runs or has ended.
struct TestPod {
  std::string name;  // for example "rollouter-1-3"
  std::string role;
  int64_t index = 0;    // among those of its role that run     // its container's name
  std::string address;  // for example "10.88.0.13"
  std::unique_ptr<Process> process;
  absl::Duration grace;  // terminationGracePeriodSeconds
  Probe startup, liveness, readiness;
  bool started = false;             // the startup probe has passed
  bool was_ready = false;           // the readiness probe has passed at least once
  bool would_be_restarted = false;  // startup or liveness probe failed as often as it may
};

// Carries out rendered manifests on this machine. The network of a node is a namespace of its own, in which each pod
// has an address and a name. Containers have the command, arguments, environment, mounts, user and read-only root of
// their manifests, and are probed and ended as a node does it. The image consists of this machine's libraries and the
// binaries of this build. Claims are folders that outlive their pods.
//
// Secrets are among the objects, as `stringData`.
//
// A field of a manifest that this class cannot carry out is an error and is not ignored, except resources, affinity and
// seccomp profiles. Single-threaded: Create moves the calling thread into the network of the node.
class TestCluster {
 public:
  // UNAVAILABLE (reason NO_NAMESPACES) if this process may not make namespaces and mounts.
  static absl::StatusOr<std::unique_ptr<TestCluster>> Create(std::vector<k8s::Document> objects,
                                                             const std::string& folder);

  // Starts one pod of the workload of `role`. Pods that have ended are kept.
  absl::StatusOr<TestPod*> StartPod(const std::string& role);
  // Starts as many pods as the workload of each role asks for.
  absl::Status StartAll();

  const std::vector<std::unique_ptr<TestPod>>& pods() const { return pods_; }
  // The folder of this machine that stands for the claim of a role.
  std::string ClaimFolder(const std::string& role) const;

  // Probes all pods until `done` is true, or `timeout`; false in the latter case.
  bool ProbeUntil(absl::Duration timeout, const std::function<bool()>& done);

  // Sends SIGTERM, then waits as long as the manifest allows; DEADLINE_EXCEEDED after that.
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
  // The answers of the cluster's name service: Services, with the pods that they select.
  absl::Status WriteHosts() const;

  const std::vector<k8s::Document> objects_;
  const std::string folder_;
  std::vector<std::unique_ptr<TestPod>> pods_;
};

}  // namespace syncopate::testing
