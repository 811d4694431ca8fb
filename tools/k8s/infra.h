#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/k8s/document.h"

namespace syncopate::k8s {

// The infra file of `syncopate k8s render`: the properties of a cluster and the resources that a run gets there. Every
// key may be left out; the overlay's value is used then.
//
//   namespace: rl                        the namespace of every object
//   instance: first                      the label app.kubernetes.io/instance, `run` on dashboards
//   image: registry.example/syncopate:0.1.0
//   image_pull_secrets: [registry]
//   priority_class: training
//   storage_class: fast                  of the volumes
//   grace: 120s                          run.grace; pods get 15 seconds more to end
//   components: [monitoring, keda]       on top of the overlay's, in any order
//   volumes:                             claims that are there, in each pod of the trainer and of the rollouters
//     - {claim: models, path: /models, read_only: true}
//   environment: {image: registry.example/worker:7}    of the components workers and environment
//   nccl: {NCCL_SOCKET_IFNAME: eth1}     environment of trainer and rollouters
//   trainer: and rollouter: and synchronizer:, and of the components workers and gateway environment: and gateway:
//     replicas: 4                        of rollouters, workers and gateways
//     gpus: 1                            of trainer and rollouters
//     cpu: "8"                           requested
//     memory: 64Gi                       requested, and the limit
//     shm: 16Gi                          /dev/shm, counted as memory; of daemons
//     storage: 500Gi                     of synchronizer and trainer
//     node_selector: {pool: h200}
//     tolerations: [{key: gpu, operator: Exists}]
class Infra {
 public:
  Infra() = default;
  // INVALID_ARGUMENT (reason BAD_INFRA) whose message lists all problems, one a line, with the nearest known key.
  static absl::StatusOr<Infra> Parse(const std::string& text, const std::string& source);

  const std::string& source() const { return source_; }
  std::string Name(const std::string& key) const { return Text(values_, {key}); }       // "": not set
  std::string worker_image() const { return Text(values_, {"environment", "image"}); }  // "": not set
  std::vector<std::string> components() const;
  Document nccl() const { return values_.value("nccl", Document::object()); }

  // The changes that one value makes to the objects: patches as in a kustomization, at least one of which must match an
  // object; `kubectl kustomize` does not report patches that match none.
  struct Wish {
    std::string key;    // "trainer.storage"
    std::string value;  // as JSON
    std::vector<Document> patches;
  };
  // The facts about the objects that the values are applied to.
  struct Ground {
    bool shared_state = false;  // the trainer's pods share one claim
    bool worker = false;        // the component environment is used: a worker beside each rollouter
    bool workers = false;       // the component workers is used
  };
  // One Wish for each value, in the order of the keys.
  std::vector<Wish> Wishes(const Ground& ground) const;
  // Gives the trainer as many ranks as the configuration says, one pod each.
  static Wish RanksWish(int64_t world);
  // Gives each rollouter's container one GPU for each of its ranks.
  static Wish ReplicaWish(int64_t ranks);
  // Starts workers with the configuration's environment.command: those beside rollouters, or those of the component
  // workers.
  static Wish CommandWish(const std::string& command, bool workers);
  // Tells the component workers the trust domain of certificates.
  static Wish TrustDomainWish(const std::string& domain);

 private:
  std::string source_;
  Document values_ = Document::object();
};

}  // namespace syncopate::k8s
