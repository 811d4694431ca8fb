#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "model/device_stream.h"
#include "model/transformer.h"
#include "rollouter/engine/engine_backend.h"
#include "rollouter/engine/generation.h"
#include "rollouter/engine/kv_cache.h"
#include "rollouter/engine/policy_slots.h"

namespace syncopate::rollouter {

// Continuous batching on one thread: each Step() is one forward pass over every running sequence and over the prompts
// that have just been admitted, then one token for each. Sequences join and leave at any step. Requests start in the
// order of Add(); one waits until all of its sequences have a slot. Not thread-safe: EngineLoop owns it. The
// constructor, BindThread(), Step() and Synchronize() may throw c10::Error, after which only Abort() makes sense.
class Engine {
 public:
  struct Options {
    int64_t max_sequences = 256;        // KV slots
    int64_t max_prefill_tokens = 4096;  // prompt tokens per step; longer prompts are prefilled in chunks
    absl::Status Validate() const;
  };

  // `config` must be valid, and `backend` made for it. Allocates the KV cache.
  Engine(const model::ModelConfig& config, std::shared_ptr<EngineBackend> backend, const Options& options);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // INVALID_ARGUMENT (reason BAD_REQUEST) if the request can never run. Reads only what never changes, so any thread
  // may call it.
  absl::Status CheckShape(const GenerationRequest& request) const;

  // Queues a request that passed CheckShape(); one that holds installs goes to the front.
  void Add(GenerationRequest request, std::shared_ptr<GenerationSink> sink);

  // Ends a request (every request if `id` is empty). Its samples get OnFinished with kAborted. Returns how many
  // sequences ended.
  int32_t Abort(const std::string& id);

  bool HasWork() const { return !waiting_.empty() || !active_.empty(); }
  // A request that asked for one version throughout is under way: an install must wait.
  bool InstallHeld() const;

  // Gives the calling thread a stream of its own on the engine's device, until UnbindThread() on the same thread. All
  // steps come between the two, or all without them on the thread's present stream.
  void BindThread() { stream_.emplace(backend_->device()); }
  void UnbindThread() { stream_.reset(); }

  // One forward pass. Precondition: HasWork() and has weights. Everything that reads the weights has ended when it
  // returns.
  void Step();
  // Blocks until nothing of the engine's is under way on the device.
  void Synchronize() const;

  PolicySlots& policy() { return policy_; }
  const PolicySlots& policy() const { return policy_; }

  int64_t running_sequences() const { return static_cast<int64_t>(slots_in_use()); }
  int64_t waiting_sequences() const;
  double kv_usage() const { return static_cast<double>(slots_in_use()) / static_cast<double>(cache_.slots()); }
  int64_t kv_bytes() const { return cache_.bytes(); }
  int64_t weight_bytes() const { return backend_->arenas().bytes(); }
  EngineBackend& backend() { return *backend_; }
  int64_t generated_tokens() const { return generated_tokens_; }
  int64_t prefilled_tokens() const { return prefilled_tokens_; }  // of prompts

 private:
  struct Sequence {
    int32_t sample = 0;
    uint64_t seed = 0;
    int64_t slot = 0;
    bool running = true;
    Trajectory trajectory;
  };
  struct ActiveRequest {
    GenerationRequest request;
    std::shared_ptr<GenerationSink> sink;
    absl::Time started;
    int64_t prefilled = 0;  // prompt tokens in the cache
    std::vector<Sequence> sequences;

    bool prefilling() const { return prefilled < static_cast<int64_t>(request.prompt_ids.size()); }
  };
  // One forward pass: its rows, and which of them produce tokens for which sequences.
  struct Batch {
    struct Draw {
      ActiveRequest* request;
      Sequence* sequence;
      int64_t logits_row;
    };
    std::vector<int64_t> ids;
    std::vector<RowPlace> rows;
    std::vector<int64_t> sampled_rows;  // rows whose logits are needed
    std::vector<Draw> draws;
    std::vector<ActiveRequest*> prefilled;  // requests whose prompt is complete with this pass
  };

  size_t slots_in_use() const { return static_cast<size_t>(cache_.slots()) - free_slots_.size(); }
  void AdmitWaiting();
  Batch BuildBatch();
  void AddPrefillRows(ActiveRequest& active, int64_t& budget, Batch& batch);
  void PadBatch(Batch& batch) const;
  // Logits of the sampled rows, [max(kMinRows, sampled_rows), V] float32 on the CPU.
  at::Tensor RunForward(Batch& batch);
  // The other samples of a prompt that is complete start from a copy of its keys and values.
  void ForkPrefilled(const Batch& batch);
  void AppendToken(const Batch::Draw& draw, const float* logits);
  // Why the sequence ends with its last token, if it does.
  std::optional<FinishReason> Finished(const ActiveRequest& active, const Sequence& sequence) const;
  void FinishSequence(ActiveRequest& active, Sequence& sequence, FinishReason reason);
  void RemoveFinishedRequests();

  const Options options_;
  const std::shared_ptr<EngineBackend> backend_;
  const model::Transformer transformer_;
  PolicySlots policy_;
  KvCache cache_;
  std::vector<int64_t> free_slots_;
  std::deque<std::pair<GenerationRequest, std::shared_ptr<GenerationSink>>> waiting_;
  std::list<ActiveRequest> active_;  // stable addresses; in order of admission
  int64_t generated_tokens_ = 0;
  int64_t prefilled_tokens_ = 0;
  std::optional<model::DeviceStream> stream_;
};

}  // namespace syncopate::rollouter
