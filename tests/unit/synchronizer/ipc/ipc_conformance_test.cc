#include <sys/mman.h>

#include <atomic>
#include <map>

#include "synchronizer/ipc/ipc_receiver.h"
#include "synchronizer/ipc/ipc_source.h"
#include "tests/support/transport_conformance.h"

// The whole transport "ipc" over its sockets, with a copy engine that reads from a WeightStore.
namespace syncopate::synchronizer {
namespace {

constexpr int64_t kAddresses = 1LL << 32;  // larger than any test's arena

// The versions that lent memory stands for, by its id. Thread-safe.
class StoreVersions {
 public:
  uint64_t Add(WeightStore* store, PolicyVersion version) {
    MutexLock lock(&mutex_);
    for (auto& [id, lent] : lent_) {
      if (lent.store != store || lent.version != version) continue;
      ++lent.loans;
      return id;
    }
    lent_[++last_] = {store, version, 1, nullptr};
    return last_;
  }
  void Remove(uint64_t id) {
    MutexLock lock(&mutex_);
    if (--lent_.at(id).loans == 0) lent_.erase(id);
  }
  // The version is pinned from the first read to the end of the last Receive.
  absl::StatusOr<std::shared_ptr<WeightReader>> GetReader(uint64_t id) {
    MutexLock lock(&mutex_);
    auto found = lent_.find(id);
    if (found == lent_.end()) return Error(absl::StatusCode::kUnavailable, "PEER_LOST", "the version was let go");
    if (found->second.reader == nullptr) {
      SYNCOPATE_ASSIGN_OR_RETURN(found->second.reader, found->second.store->Open(found->second.version));
    }
    return found->second.reader;
  }
  void BeginReceive() {
    MutexLock lock(&mutex_);
    ++receiving_;
  }
  void EndReceive() {
    MutexLock lock(&mutex_);
    if (--receiving_ > 0) return;
    for (auto& [id, lent] : lent_) lent.reader.reset();
  }

 private:
  struct Lent {
    WeightStore* store = nullptr;
    PolicyVersion version;
    int loans = 0;
    std::shared_ptr<WeightReader> reader;
  };
  Mutex mutex_;
  std::map<uint64_t, Lent> lent_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_ ABSL_GUARDED_BY(mutex_) = 0;
  int receiving_ ABSL_GUARDED_BY(mutex_) = 0;
};

class StoreLending final : public LendingStore {
 public:
  StoreLending(WeightStore* store, StoreVersions* versions) : store_(store), versions_(versions) {}
  uint64_t fingerprint() const override { return store_->fingerprint(); }
  absl::StatusOr<std::unique_ptr<LentVersion>> Lend(PolicyVersion version, std::function<void()>) override {
    SYNCOPATE_RETURN_IF_ERROR(store_->Open(version).status());
    return std::make_unique<Loan>(versions_, versions_->Add(store_, version));
  }

 private:
  struct Loan final : LentVersion {
    Loan(StoreVersions* from, uint64_t memory_id) : versions(from), id(memory_id) {}
    ~Loan() override { versions->Remove(id); }
    SharedMemory memory() const override {
      auto lent = std::make_shared<LentMemory>();
      lent->info = {id, "", {kAddresses}};
      lent->handles.emplace_back(::memfd_create("nothing", MFD_CLOEXEC));
      return lent;
    }
    StoreVersions* const versions;
    const uint64_t id;
  };

  WeightStore* const store_;
  StoreVersions* const versions_;
};

// Addresses that cannot be read; the copy engine knows which version they stand for.
class StoreMapping final : public ipc::MappedMemory {
 public:
  explicit StoreMapping(uint64_t memory_id)
      : id(memory_id),
        data_(::mmap(nullptr, kAddresses, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    SYNCOPATE_CHECK(data_ != MAP_FAILED);
  }
  ~StoreMapping() override { ::munmap(data_, kAddresses); }
  const char* data() const override { return static_cast<const char*>(data_); }
  const uint64_t id;

 private:
  void* const data_;
};

class StoreCopyEngine final : public ipc::CopyEngine {
 public:
  explicit StoreCopyEngine(StoreVersions* versions) : versions_(versions) {}

  absl::StatusOr<std::shared_ptr<const ipc::MappedMemory>> Map(LentMemory memory) override {
    auto mapping = std::make_shared<const StoreMapping>(memory.info.id);
    MutexLock lock(&mutex_);
    mappings_[mapping->data()] = mapping;
    return mapping;
  }
  absl::StatusOr<std::unique_ptr<ipc::CopyQueue>> NewQueue() override { return std::make_unique<Queue>(this); }

 private:
  class Queue final : public ipc::CopyQueue {
   public:
    explicit Queue(StoreCopyEngine* engine) : engine_(engine) {}
    absl::Status Copy(char* to, const char* from, int64_t bytes) override {
      ++copies_;
      return engine_->Copy(to, from, bytes);
    }
    absl::StatusOr<int64_t> Finished() override { return copies_; }
    void* stream() override { return nullptr; }
    absl::Status Drain(absl::Duration) override { return absl::OkStatus(); }

   private:
    StoreCopyEngine* const engine_;
    int64_t copies_ = 0;
  };

  absl::Status Copy(char* to, const char* from, int64_t bytes) {
    uint64_t id = 0;
    int64_t begin = 0;
    {
      MutexLock lock(&mutex_);
      auto mapping = std::prev(mappings_.upper_bound(from));
      begin = from - mapping->first;
      id = mapping->second.lock()->id;
    }
    SYNCOPATE_ASSIGN_OR_RETURN(std::shared_ptr<WeightReader> reader, versions_->GetReader(id));
    return reader->Read({begin, begin + bytes}, to);
  }

  StoreVersions* const versions_;
  Mutex mutex_;
  std::map<const char*, std::weak_ptr<const StoreMapping>> mappings_ ABSL_GUARDED_BY(mutex_);  // key: address
};

// A process with a source that can be killed, while others still hold pointers to its end.
class MortalSource final : public SourceTransport {
 public:
  MortalSource(WeightStore* store, StoreVersions* versions)
      : lending_(store, versions), source_(*IpcSource::Create(&lending_, {})) {}
  void Kill() { source_.reset(); }

  std::string name() const override { return "ipc"; }
  absl::StatusOr<std::string> Open(const Prepare& attempt) override { return source_->Open(attempt); }
  void Close(int64_t attempt) override {
    if (source_ != nullptr) source_->Close(attempt);
  }

 private:
  StoreLending lending_;
  std::unique_ptr<IpcSource> source_;
};

class CountedReceiver final : public ReceiverTransport {
 public:
  CountedReceiver(ReceiverTransport* receiver, StoreVersions* versions) : receiver_(receiver), versions_(versions) {}
  std::string name() const override { return receiver_->name(); }
  absl::StatusOr<std::string> Open(const Prepare& attempt) override { return receiver_->Open(attempt); }
  absl::Status Receive(const ReceiveRequest& request, char* destination, std::stop_token stop) override {
    versions_->BeginReceive();
    absl::Status received = receiver_->Receive(request, destination, std::move(stop));
    versions_->EndReceive();
    return received;
  }
  void Close(int64_t attempt) override { receiver_->Close(attempt); }

 private:
  ReceiverTransport* const receiver_;
  StoreVersions* const versions_;
};

class IpcHarness final : public TransportHarness {
 public:
  IpcHarness() : engine_(&versions_) {
    IpcReceiver::Options options;
    options.engine = &engine_;
    options.chunk_bytes = kChunkBytes;
    options.bytes_in_flight = 1;  // the engine copies at once
    receiver_ = *IpcReceiver::Create(std::move(options));
    counted_ = std::make_unique<CountedReceiver>(receiver_.get(), &versions_);
  }
  SourceTransport* AddSource(WeightStore* store) override {
    sources_.push_back(std::make_unique<MortalSource>(store, &versions_));
    return sources_.back().get();
  }
  void KillSource(SourceTransport* source) override { static_cast<MortalSource*>(source)->Kill(); }
  ReceiverTransport* receiver() override { return counted_.get(); }

 private:
  StoreVersions versions_;
  StoreCopyEngine engine_;
  std::vector<std::unique_ptr<MortalSource>> sources_;
  std::unique_ptr<IpcReceiver> receiver_;
  std::unique_ptr<CountedReceiver> counted_;
};

std::unique_ptr<TransportHarness> MakeIpcHarness() { return std::make_unique<IpcHarness>(); }

INSTANTIATE_TEST_SUITE_P(Ipc, TransportConformanceTest, ::testing::Values(&MakeIpcHarness));
INSTANTIATE_TEST_SUITE_P(Ipc, TransportShapesTest, ::testing::Values(&MakeIpcHarness));

}  // namespace
}  // namespace syncopate::synchronizer
