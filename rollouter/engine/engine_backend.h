#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/manifest.h"
#include "base/policy_version.h"
#include "base/status.h"
#include "model/model_config.h"
#include "model/transformer.h"
#include "ranks/communicator.h"
#include "rollouter/engine/model_runner.h"
#include "synchronizer/transport/weight_target.h"

namespace syncopate::rollouter {

// The memory of a rollouter's weights: the live bytes, which serve tokens, and a shadow that receives the next version.
// The live side belongs to the engine's thread; the shadow bytes and BeginCheck belong to the receiver.
class WeightArenas {
 public:
  virtual ~WeightArenas() = default;
  // Returns manifest.arena_bytes() bytes on the backend's device. Without a shadow (shadow_set()): null.
  virtual char* shadow() = 0;
  virtual const char* live() const = 0;
  virtual int64_t bytes() const = 0;  // memory allocated now on the backend's device, all weight sets together
  // True if there is one weight set; shadow() is then live().
  virtual bool in_place() const { return false; }
  // Not 0: the shadow has no memory of its own, but is lent this many bytes of the keys and values by TakeShadow().
  virtual int64_t borrowed_bytes() const { return 0; }
  // For a borrowed shadow. TakeShadow() gives shadow() memory with undefined contents, once ModelRunner::LendBlocks()
  // has freed as much; after an error there is no shadow (RESOURCE_EXHAUSTED). DropShadow() takes away the memory that
  // does not serve: after an Exchange() that is the one that served before. Repeated calls do nothing. Call both when
  // nobody uses the shadow.
  virtual absl::Status TakeShadow() { return absl::OkStatus(); }
  virtual absl::Status DropShadow() { return absl::OkStatus(); }
  // Returns views of the live bytes. After Exchange() it returns another object, perhaps with the same addresses.
  virtual const model::TransformerWeights& weights() const = 0;

  // The number of adapter sets (AdapterSets); 0: there are none, and the next three are not called. Each set has an
  // address range [base | adapters] whose base is the same memory, so live() and shadow() differ in adapters alone.
  // Set 0 is live at first, and set 1 the shadow. Exchange() makes the shadow live; afterwards there is no shadow until
  // ChooseShadow(), and plans may go on to use what was live.
  virtual int32_t adapter_sets() const { return 0; }
  // Returns views of the base and the adapters of `set`; kNoSet: of the base alone.
  virtual const model::TransformerWeights& weights_of(int32_t /*set*/) const { return weights(); }
  // Names the set that receives; AdapterSets::kNone: none. Called by the engine's thread while no attempt uses the
  // shadow. Any thread may call shadow_set().
  virtual void ChooseShadow(int32_t /*set*/) {}
  virtual int32_t shadow_set() const { return -1; }
  // See WeightTarget. Called by the receiver while no step runs (BeginOverwrite) and no Release() or Restore().
  virtual bool maps_base() const { return false; }
  virtual absl::Status MapBase(synchronizer::LentMemory /*memory*/) {
    return Error(absl::StatusCode::kFailedPrecondition, "BASE_UNMAPPABLE", "these weights map no base");
  }
  virtual absl::Status OwnBase() { return absl::OkStatus(); }

  // Exchanges shadow and live contents. Call only between decode steps, when no work on either is in progress. Blocks
  // for the exchange, at most for `deadline`. After an error the live bytes are unchanged; except INTERNAL (reason
  // WEIGHTS_UNMAPPED): then there are no live bytes, and the engine can only be destroyed.
  virtual absl::Status Exchange(const PolicyVersion& version, uint64_t digest, absl::Duration deadline) = 0;
  // Announces that a transfer of `version` is about to overwrite the live bytes in place. Call only between decode
  // steps, when no work on the weights is in progress; none may begin before the transfer is over.
  virtual absl::Status BeginOverwrite(const PolicyVersion& /*version*/) { return absl::OkStatus(); }
  // Copies these byte ranges from the live side to the shadow, while decode steps run. Blocks until the copy is done.
  // Called by the receiver while no Exchange() is in progress.
  virtual absl::Status CopyLive(const std::vector<ByteRange>& ranges) = 0;
  // Release() frees the memory of all weight sets. With `keep_live` the live bytes stay in host memory; otherwise they
  // are lost, even if an earlier call kept them. The next use comes after Restore(), which allocates the memory again
  // (at the same addresses on backends with fixed addresses), restores the kept live bytes, and zeros everything else;
  // it does nothing if nothing was released. Call both only when no work on the weights is in progress and no receiver
  // uses them. RESOURCE_EXHAUSTED if host memory does not suffice for the kept bytes, or if Restore() finds too little
  // memory: then nothing has changed.
  virtual absl::Status Release(bool keep_live) = 0;
  virtual absl::Status Restore() = 0;
  // See WeightTarget::BeginCheck.
  virtual absl::StatusOr<std::unique_ptr<synchronizer::ShadowCheck>> BeginCheck(
      synchronizer::ShadowContents contents) = 0;
};

// The part of an engine that depends on its device. Chosen when the process starts: HostBackend is always linked; the
// backend for CUDA is in a library of its own (rollouter/cuda). Not thread-safe, except as WeightArenas says.
class EngineBackend {
 public:
  virtual ~EngineBackend() = default;
  virtual at::Device device() const = 0;
  virtual DType dtype() const = 0;  // the data type of weights and activations
  virtual WeightArenas& arenas() = 0;
  // The memory of one block of keys and values in all layers; on one rank of a replica, of that rank's heads.
  virtual int64_t kv_block_bytes() const = 0;
  // The default number of prompt tokens per step for this device and model; `deterministic` as in
  // RunnerOptions::deterministic.
  virtual int64_t prefill_tokens(bool deterministic) const { return 4096; }
  // Creates a runner of the arenas' weights, which must not outlive the backend. RESOURCE_EXHAUSTED if memory does not
  // suffice; may throw c10::Error.
  virtual absl::StatusOr<std::unique_ptr<ModelRunner>> MakeRunner(const RunnerOptions& options) = 0;
  // Blocks until the other ranks of a replica have released or restored their memory as this one has; rank 0 calls it.
  // RESOURCE_EXHAUSTED (reason NO_ROOM) if one of them has too little for what was to be restored; UNAVAILABLE (reason
  // RANK_LOST).
  virtual absl::Status AwaitRanks() { return absl::OkStatus(); }
};

// Gives libtorch's cache on the backend's device back: what the tensors of prompts have left there is memory in use to
// other processes.
void EmptyCache(const EngineBackend& backend);

// The memory of the weight sets on the CPU.
enum class HostInstall : uint8_t {
  kSwap,      // two sets
  kInPlace,   // one set, which receives
  kBorrowed,  // one set; the second one is there only while keys and values lend its memory
  // Adapter sets whose base may be memory that a trainer lends, and has memory of its own only once it is received.
  kMappedBase,
};

// The CPU backend in float32 or bfloat16. An install exchanges pointers; with one weight set it does nothing. A model
// with adapters, by its wire manifest (model::MakeWireManifest), has adapter sets whatever HostInstall says.
class HostBackend final : public EngineBackend {
 public:
  // `manifest` is the manifest of `config`, all tensors in one dtype. Allocates manifest.arena_bytes() for each weight
  // set, or with adapters one base and AdapterSets::kSets sets of them. With `ranks` (borrowed) this is one rank of a
  // replica, and `config` and `manifest` are those of its slice (rank_slice.h).
  HostBackend(const model::ModelConfig& config, const Manifest& manifest, HostInstall install = HostInstall::kSwap,
              Communicator* ranks = nullptr);
  ~HostBackend() override;

  at::Device device() const override { return at::kCPU; }
  DType dtype() const override { return dtype_; }
  WeightArenas& arenas() override;
  int64_t kv_block_bytes() const override;
  absl::StatusOr<std::unique_ptr<ModelRunner>> MakeRunner(const RunnerOptions& options) override;

 private:
  class Arenas;
  class AdapterArenas;
  static std::unique_ptr<WeightArenas> MakeArenas(const model::ModelConfig& config, const Manifest& manifest,
                                                  HostInstall install);

  const model::ModelConfig config_;
  const DType dtype_;
  const std::unique_ptr<WeightArenas> arenas_;
  Communicator* const ranks_;
};

}  // namespace syncopate::rollouter
