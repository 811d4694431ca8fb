#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/manifest.h"
#include "base/policy_version.h"
#include "model/model_config.h"
#include "model/transformer.h"
#include "ranks/communicator.h"
#include "rollouter/engine/model_runner.h"
#include "synchronizer/transport/weight_target.h"

namespace syncopate::rollouter {

// The memory of a rollouter's weights: the bytes that serve tokens, and a shadow that receives the next version. The
// live side belongs to the engine's thread; the shadow bytes, and BeginCheck, to whoever receives.
class WeightArenas {
 public:
  virtual ~WeightArenas() = default;
  // manifest.arena_bytes() bytes, where the backend computes.
  virtual char* shadow() = 0;
  virtual const char* live() const = 0;
  virtual int64_t bytes() const = 0;  // of memory held now where the backend computes, all weight sets together
  // One weight set: shadow() is live().
  virtual bool in_place() const { return false; }
  // Views of the live bytes. Another object after Exchange(), perhaps at the same addresses.
  virtual const model::TransformerWeights& weights() const = 0;

  // The shadow's contents are the live ones from now on. Only between decode steps, when no work on either is under
  // way. Blocks for the exchange, at most `deadline`. After an error the live bytes are as they were; except INTERNAL
  // reason WEIGHTS_UNMAPPED: then there are none, and nothing can be done but to destroy the engine.
  virtual absl::Status Exchange(const PolicyVersion& version, uint64_t digest, absl::Duration deadline) = 0;
  // The shadow is complete: what of the exchange can be done beside decode steps. Called by the receiver; shadow() or
  // BeginCheck() takes it back.
  virtual void ExpectExchange() {}
  // Makes these bytes of the shadow equal to the live ones, beside decode steps. Blocks until they are. Called by the
  // receiver, while no Exchange() is under way.
  virtual absl::Status CopyLive(const std::vector<ByteRange>& ranges) = 0;
  // Gives the memory of all weight sets back; with `keep_live` the live bytes stay in host memory, else they are lost, also
  // if an earlier call has kept them. The next use comes after Restore(), which brings memory to the same addresses where
  // those are for life, the live bytes that were kept, and zeros everywhere else; it does nothing if nothing was given
  // back. Only when no work on the weights is under way and nobody receives. RESOURCE_EXHAUSTED if there is no memory for
  // what is kept, or none any more for Restore(): then nothing has changed.
  virtual absl::Status Release(bool keep_live) = 0;
  virtual absl::Status Restore() = 0;
  // As WeightTarget::BeginCheck.
  virtual absl::StatusOr<std::unique_ptr<synchronizer::ShadowCheck>> BeginCheck(
      synchronizer::ShadowContents contents) = 0;
};

// What of an engine depends on where it computes. Chosen when the process starts: HostBackend is always there, the one
// for CUDA is in a library of its own (rollouter/cuda). Not thread-safe, except as WeightArenas says.
class EngineBackend {
 public:
  virtual ~EngineBackend() = default;
  virtual at::Device device() const = 0;
  virtual DType dtype() const = 0;  // of weights and activations
  virtual WeightArenas& arenas() = 0;
  // Prompt tokens of a step that suit device and model, where nobody asks for another number; `deterministic` as
  // RunnerOptions::deterministic.
  virtual int64_t prefill_tokens(bool deterministic) const { return 4096; }
  // A runner of the arenas' weights, which must not outlive the backend. RESOURCE_EXHAUSTED if there is no memory for
  // it; may throw c10::Error.
  virtual absl::StatusOr<std::unique_ptr<ModelRunner>> MakeRunner(const RunnerOptions& options) = 0;
};

// float32 or bfloat16 on the CPU; an install exchanges pointers, or with one weight set nothing.
class HostBackend final : public EngineBackend {
 public:
  // `manifest` is the manifest of `config`, all in one dtype. Allocates weight_sets (1 or 2) * manifest.arena_bytes().
  // With `ranks`, which is borrowed, this is one rank of a replica, and both are of its slice (rank_slice.h).
  HostBackend(const model::ModelConfig& config, const Manifest& manifest, int weight_sets = 2,
              Communicator* ranks = nullptr);
  ~HostBackend() override;

  at::Device device() const override { return at::kCPU; }
  DType dtype() const override { return dtype_; }
  WeightArenas& arenas() override;
  absl::StatusOr<std::unique_ptr<ModelRunner>> MakeRunner(const RunnerOptions& options) override;

 private:
  class Arenas;
  const model::ModelConfig config_;
  const DType dtype_;
  const std::unique_ptr<Arenas> arenas_;
  Communicator* const ranks_;
};

}  // namespace syncopate::rollouter
