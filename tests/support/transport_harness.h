#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "synchronizer/plan/pack.h"
#include "synchronizer/transport/arena_pair.h"
#include "synchronizer/transport/send_arena.h"
#include "synchronizer/transport/transport.h"
#include "synchronizer/transport/weight_store.h"
#include "synchronizer/transport/weight_target.h"

namespace syncopate::synchronizer {

// Where a test receiver keeps its weights. Tests access the bytes only through this class, so the bytes may be in
// device memory.
class TestTarget {
 public:
  virtual ~TestTarget() = default;
  virtual WeightTarget* target() = 0;
  virtual std::vector<char> Live() const = 0;  // a copy of the weights that serve
  virtual PolicyVersion serving() const = 0;
};

// Where a test source stages its shards, in the wire order of a plan.
class TestArena {
 public:
  virtual ~TestArena() = default;
  virtual WeightStore* store() = 0;
  // Packs `shard`, which is in host memory; returns the digests of this source's buckets.
  virtual absl::StatusOr<std::vector<uint64_t>> Stage(PolicyVersion version, const std::vector<char>& shard) = 0;
};

// Both ends of one transport, each source and each receiver as if it were in a process of its own.
class TransportHarness {
 public:
  virtual ~TransportHarness() = default;
  // A source that serves `store`, which is borrowed.
  virtual SourceTransport* AddSource(WeightStore* store) = 0;
  // Ends the process of a source: it answers nothing and reads nothing any more. Idempotent.
  virtual void KillSource(SourceTransport* source) = 0;
  virtual ReceiverTransport* receiver() = 0;
  // Makes one more receiver beside receiver(); null if this harness has only that one.
  virtual ReceiverTransport* AddReceiver() { return nullptr; }
  // Whether there is room for this number of members, sources and receivers together.
  virtual bool CanHold(int /*members*/) const { return true; }

  // Memory that this transport can access: host memory, unless the transport needs another kind. A target is for the
  // receiver that was made last; an arena must be made before the source that serves it.
  virtual std::unique_ptr<TestTarget> MakeTarget(int64_t bytes);
  virtual std::unique_ptr<TestArena> MakeArena(const Manifest& manifest, const SyncPlan& plan, int32_t source);
};

using HarnessFactory = std::unique_ptr<TransportHarness> (*)();

class HostTarget final : public TestTarget {
 public:
  explicit HostTarget(int64_t bytes) : bytes_(bytes), arenas_(bytes) {}
  WeightTarget* target() override { return &arenas_; }
  std::vector<char> Live() const override { return {arenas_.live(), arenas_.live() + bytes_}; }
  PolicyVersion serving() const override { return arenas_.serving(); }

 private:
  const int64_t bytes_;
  ArenaPair arenas_;
};

class HostArena final : public TestArena {
 public:
  HostArena(const Manifest& manifest, const SyncPlan& plan, int32_t source)
      : ops_(plan.pack(source)), arena_(*SendArena::CreateForPlan(manifest, plan, source, {})) {}
  WeightStore* store() override { return arena_.get(); }
  absl::StatusOr<std::vector<uint64_t>> Stage(PolicyVersion version, const std::vector<char>& shard) override {
    SYNCOPATE_ASSIGN_OR_RETURN(SendArena::Staged staged, arena_->Stage(version, [&](char* bytes) {
      PackOnHost(ops_, shard.data(), bytes);
      return absl::OkStatus();
    }));
    return staged.bucket_digests;
  }

 private:
  const std::vector<PackOp> ops_;
  std::unique_ptr<SendArena> arena_;
};

inline std::unique_ptr<TestTarget> TransportHarness::MakeTarget(int64_t bytes) {
  return std::make_unique<HostTarget>(bytes);
}

inline std::unique_ptr<TestArena> TransportHarness::MakeArena(const Manifest& manifest, const SyncPlan& plan,
                                                              int32_t source) {
  return std::make_unique<HostArena>(manifest, plan, source);
}

}  // namespace syncopate::synchronizer
