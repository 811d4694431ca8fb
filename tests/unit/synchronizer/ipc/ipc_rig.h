#pragma once

#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "gtest/gtest.h"
#include "synchronizer/ipc/ipc_receiver.h"
#include "synchronizer/ipc/ipc_source.h"
#include "synchronizer/plan/layout_text.h"
#include "tests/support/host_copy_engine.h"
#include "tests/support/rig_parts.h"
#include "tests/support/synchronizer_fixtures.h"

namespace syncopate::synchronizer {

// The staged bytes of a source: one slot, lent until it is superseded. Thread-safe.
class HostStore final : public LendingStore {
 public:
  HostStore(uint64_t memory_id, int64_t bytes, uint64_t fingerprint)
      : memory_(memory_id, bytes), fingerprint_(fingerprint) {}

  // Stages random bytes as `version`; readers of an older version are notified before.
  void Stage(PolicyVersion version, uint64_t seed) {
    std::vector<std::function<void()>> readers;
    {
      MutexLock lock(&mutex_);
      for (auto& [number, reader] : readers_) readers.push_back(reader);
    }
    for (auto& reader : readers) reader();
    std::mt19937_64 random(seed);
    for (int64_t at = 0; at < memory_.bytes(); ++at) memory_.data()[at] = static_cast<char>(random());
    MutexLock lock(&mutex_);
    version_ = version;
  }
  const char* data() const { return memory_.data(); }
  size_t readers() const {
    MutexLock lock(&mutex_);
    return readers_.size();
  }

  uint64_t fingerprint() const override { return fingerprint_; }
  absl::StatusOr<std::unique_ptr<LentVersion>> Lend(PolicyVersion version,
                                                    std::function<void()> on_superseded) override {
    MutexLock lock(&mutex_);
    if (version != version_) return Error(absl::StatusCode::kNotFound, "VERSION_NOT_STAGED", "not here");
    readers_[++last_reader_] = std::move(on_superseded);
    return std::make_unique<Loan>(this, last_reader_);
  }

 private:
  struct Loan final : LentVersion {
    Loan(HostStore* of, int64_t reader) : store(of), number(reader) {}
    ~Loan() override {
      MutexLock lock(&store->mutex_);
      store->readers_.erase(number);
    }
    SharedMemory memory() const override { return store->memory_.Lend(); }
    HostStore* const store;
    const int64_t number;
  };

  const ipc::HostMemory memory_;
  const uint64_t fingerprint_;
  mutable Mutex mutex_;
  PolicyVersion version_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, std::function<void()>> readers_ ABSL_GUARDED_BY(mutex_);
  int64_t last_reader_ ABSL_GUARDED_BY(mutex_) = 0;
};

// T sources and M replicas of P ranks over the transport "ipc" on host memory, driven as the synchronizer drives them.
class IpcRig {
 public:
  struct Member {
    ipc::HostCopyEngine engine;
    std::unique_ptr<ipc::HostMemory> shadow;
    std::unique_ptr<IpcReceiver> transport;
    std::string rendezvous;
    std::vector<int> arrivals;  // how often each byte was announced
    std::stop_source stop;
    bool connected = false;
  };

  IpcRig(const std::string& source_layout, int replicas, const std::string& destination_layout, bool relays = true,
         size_t mapped_memories = 64)
      : manifest_(BFloat16Model()),
        plan_(*SyncPlan::Create(manifest_, *BuildLayout(manifest_, source_layout),
                                *BuildLayout(manifest_, destination_layout))),
        replicas_(replicas) {
    for (int32_t rank = 0; rank < plan_.sources(); ++rank) {
      stores_.push_back(std::make_unique<HostStore>(100 + rank, plan_.send_bytes(rank), manifest_.fingerprint()));
      sources_.push_back(*IpcSource::Create(stores_.back().get(), {}));
    }
    for (int32_t i = 0; i < replicas * plan_.destinations(); ++i) AddMember(i, relays, mapped_memories);
  }

  // All members prepare for the staged version.
  absl::Status Prepare(int64_t step) {
    attempt_ = step;
    synchronizer::Prepare prepare;
    prepare.attempt = attempt_;
    prepare.version = {1, step};
    prepare.manifest_fingerprint = manifest_.fingerprint();
    prepare.sources = plan_.sources();
    rendezvous_.clear();
    for (auto& source : sources_) {
      SYNCOPATE_ASSIGN_OR_RETURN(std::string where, source->Open(prepare));
      rendezvous_.push_back(where);
    }
    for (auto& member : members_) {
      SYNCOPATE_ASSIGN_OR_RETURN(member->rendezvous, member->transport->Open(prepare));
    }
    return absl::OkStatus();
  }
  void Stage(int64_t step) {
    for (size_t rank = 0; rank < stores_.size(); ++rank) stores_[rank]->Stage({1, step}, 1000 * step + rank);
  }

  ReceiveRequest MakeRequest(int32_t self, absl::Duration deadline = absl::Seconds(20)) {
    ReceiveRequest request;
    request.attempt = attempt_;
    request.version = {1, attempt_};
    request.manifest_fingerprint = manifest_.fingerprint();
    request.world = plan_.destinations();
    request.replicas = replicas_;
    request.self = self;
    for (int32_t rank = 0; rank < plan_.sources(); ++rank) {
      request.sources.push_back({TrainerId("t", rank, plan_.sources()), rendezvous_[rank]});
    }
    for (size_t i = 0; i < members_.size(); ++i) {
      int32_t world = plan_.destinations();
      request.receivers.push_back(
          {RollouterId(static_cast<int>(i) / world, "r", static_cast<int32_t>(i) % world, world),
           members_[i]->rendezvous});
    }
    request.copies = plan_.CopiesTo(self % plan_.destinations());
    request.deadline = Clock::Real()->Now() + deadline;
    Member* member = members_[self].get();
    member->arrivals.assign(member->shadow->bytes(), 0);
    member->connected = false;
    request.on_arrived = [member](ByteRange range, void*) {
      for (int64_t at = range.begin; at < range.end; ++at) ++member->arrivals[at];
    };
    request.on_connected = [member] { member->connected = true; };
    return request;
  }
  absl::Status ReceiveOne(int32_t self, absl::Duration deadline = absl::Seconds(20)) {
    Member& member = *members_[self];
    std::memset(member.shadow->data(), 0, static_cast<size_t>(member.shadow->bytes()));
    return member.transport->Receive(MakeRequest(self, deadline), member.shadow->data(), member.stop.get_token());
  }
  std::vector<absl::Status> ReceiveAll() {
    return ReceiveAtOnce(members_.size(), [this](int32_t self) { return ReceiveOne(self); });
  }
  void Finish() {
    for (auto& source : sources_) source->Close(attempt_);
    for (auto& member : members_) member->transport->Close(attempt_);
  }

  // Expects that the member has the bytes that the plan takes from the sources, and that each byte was announced once.
  void ExpectArrived(int32_t self) {
    const Member& member = *members_[self];
    EXPECT_TRUE(member.connected);
    ExpectCopied(
        plan_.CopiesTo(self % plan_.destinations()), [this](int32_t rank) { return stores_[rank]->data(); },
        member.shadow->data(), member.arrivals, self);
  }

  const SyncPlan& plan() const { return plan_; }
  HostStore* store(size_t rank = 0) { return stores_[rank].get(); }
  IpcSource* source(size_t rank = 0) { return sources_[rank].get(); }
  void KillSource(size_t rank) { sources_[rank].reset(); }
  Member* member(size_t index = 0) { return members_[index].get(); }
  size_t members() const { return members_.size(); }
  int64_t attempt() const { return attempt_; }

 private:
  void AddMember(int32_t index, bool relays, size_t mapped_memories) {
    auto member = std::make_unique<Member>();
    int64_t bytes = 256;
    for (const Copy& copy : plan_.CopiesTo(index % plan_.destinations())) {
      bytes = std::max(bytes, copy.destination_offset + copy.bytes);
    }
    member->shadow = std::make_unique<ipc::HostMemory>(200 + index, bytes);
    IpcReceiver::Options options;
    options.engine = &member->engine;
    if (relays) options.shadow = [raw = member.get()] { return raw->shadow->Lend(); };
    options.chunk_bytes = 1000;  // makes many chunks, which are not aligned to anything
    options.bytes_in_flight = 3000;
    options.mapped_memories = mapped_memories;
    member->transport = *IpcReceiver::Create(std::move(options));
    members_.push_back(std::move(member));
  }

  const Manifest manifest_;
  const SyncPlan plan_;
  const int32_t replicas_;
  std::vector<std::unique_ptr<HostStore>> stores_;
  std::vector<std::unique_ptr<IpcSource>> sources_;
  std::vector<std::unique_ptr<Member>> members_;
  std::vector<std::string> rendezvous_;
  int64_t attempt_ = 0;
};

}  // namespace syncopate::synchronizer
