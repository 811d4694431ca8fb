#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "synchronizer/attempts/sync_attempt.h"
#include "synchronizer/nccl/nccl_receiver.h"
#include "synchronizer/nccl/nccl_source.h"
#include "synchronizer/plan/layout_text.h"
#include "synchronizer/transport/split_copies.h"
#include "tests/support/fake_communicators.h"
#include "tests/support/notification.h"
#include "tests/support/rig_parts.h"
#include "tests/support/status_matchers.h"
#include "tests/support/synchronizer_fixtures.h"

namespace syncopate::synchronizer {

// The staged bytes of a source, one slot. Thread-safe except for the bytes.
class HostStaged final : public StagedMemory {
 public:
  explicit HostStaged(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {}
  void Stage(PolicyVersion version, uint64_t seed) {
    std::function<void()> superseded;
    {
      MutexLock lock(&mutex_);
      superseded = on_superseded_;
      version_ = version;
    }
    if (superseded) superseded();
    std::mt19937_64 random(seed);
    for (char& byte : bytes_) byte = static_cast<char>(random());
  }
  const char* data() const { return bytes_.data(); }
  int pins() {
    MutexLock lock(&mutex_);
    return pins_;
  }

  absl::StatusOr<std::unique_ptr<StagedVersion>> Pin(PolicyVersion version,
                                                     std::function<void()> on_superseded) override {
    MutexLock lock(&mutex_);
    if (version != version_) return Error(absl::StatusCode::kNotFound, "VERSION_NOT_STAGED", "not here");
    ++pins_;
    on_superseded_ = std::move(on_superseded);
    return std::make_unique<Slot>(this);
  }

 private:
  struct Slot final : StagedVersion {
    explicit Slot(HostStaged* owner) : of(owner) {}
    ~Slot() override {
      MutexLock lock(&of->mutex_);
      --of->pins_;
      of->on_superseded_ = nullptr;
    }
    const char* data() const override { return of->bytes_.data(); }
    int64_t bytes() const override { return static_cast<int64_t>(of->bytes_.size()); }
    HostStaged* const of;
  };

  std::vector<char> bytes_;
  Mutex mutex_;
  PolicyVersion version_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> on_superseded_ ABSL_GUARDED_BY(mutex_);
  int pins_ ABSL_GUARDED_BY(mutex_) = 0;
};

// T sources and M replicas of P ranks over the transport "nccl" with fake communicators, driven as the synchronizer
// drives them.
class NcclRig {
 public:
  struct Source {
    explicit Source(int64_t bytes) : staged(bytes) {}
    HostStaged staged;
    nccl::FakeDeviceControl control;
    std::unique_ptr<NcclSource> transport;
    SyncMember member;
  };
  struct Receiver {
    nccl::FakeDeviceControl control;
    std::unique_ptr<NcclReceiver> transport;
    SyncMember member;
    std::vector<char> bytes;
    std::vector<int> arrivals;
    std::stop_source stop;
  };

  NcclRig(const std::string& source_layout, int replicas, const std::string& destination_layout)
      : manifest_(std::make_shared<Manifest>(BFloat16Model())),
        source_layout_(source_layout),
        destination_layout_(destination_layout),
        plan_(*SyncPlan::Create(*manifest_, *BuildLayout(*manifest_, source_layout),
                                *BuildLayout(*manifest_, destination_layout))) {
    for (int32_t rank = 0; rank < plan_.sources(); ++rank) AddSource(rank);
    for (int32_t i = 0; i < replicas * plan_.destinations(); ++i) AddReceiver(i);
  }

  void Stage(int64_t step) {
    for (size_t rank = 0; rank < sources_.size(); ++rank) sources_[rank]->staged.Stage({1, step}, step * 100 + rank);
  }

  // From this call on, only the adapters are sent.
  void SendAdaptersAlone(const Subset& subset) {
    subset_ = subset;
    for (auto& receiver : receivers_) receiver->member.base = false;
  }
  std::vector<Copy> CopiesTo(int32_t slice) const {
    const bool base = subset_.adapters.empty();
    return Split(*manifest_, *BuildLayout(*manifest_, destination_layout_), slice, plan_.CopiesTo(slice),
                 subset_.adapters, base)
        .sent;
  }

  // All members prepare; then the attempt has those receivers that take part.
  absl::Status Prepare(int64_t step, std::vector<int> taking_part = {}, absl::Duration deadline = absl::Seconds(20),
                       bool rehearsal = false) {
    if (taking_part.empty()) {
      for (size_t i = 0; i < receivers_.size(); ++i) taking_part.push_back(static_cast<int>(i));
    }
    deadline_ = deadline;
    taking_part_ = taking_part;
    synchronizer::Prepare prepare;
    prepare.attempt = attempt_ = ++attempts_;
    prepare.rehearsal = rehearsal;
    if (!rehearsal) prepare.version = {1, step};
    prepare.sources = plan_.sources();
    prepare.receivers = static_cast<int32_t>(taking_part.size()) / plan_.destinations();
    prepare.deadline = deadline;
    prepare.source_layout = source_layout_;
    prepare.destination_layout = destination_layout_;
    prepare.subset = subset_;
    prepare.group = group();
    for (auto& source : sources_) {
      SYNCOPATE_ASSIGN_OR_RETURN(source->member.rendezvous, source->transport->Open(prepare));
    }
    for (int index : taking_part) {
      SYNCOPATE_ASSIGN_OR_RETURN(receivers_[index]->member.rendezvous, receivers_[index]->transport->Open(prepare));
    }
    return absl::OkStatus();
  }
  std::string group() const {
    std::vector<MemberId> sources;
    std::vector<MemberId> receivers;
    for (const auto& source : sources_) sources.push_back(source->member.id);
    for (int index : taking_part_) receivers.push_back(receivers_[index]->member.id);
    return GroupName(sources, receivers);
  }
  Transfer MakeTransfer() const {
    Transfer transfer;
    transfer.attempt = attempt_;
    transfer.group = group();
    for (const auto& source : sources_) transfer.sources.push_back(source->member);
    for (int index : taking_part_) transfer.receivers.push_back(receivers_[index]->member);
    return transfer;
  }
  absl::Status Start(size_t rank) {
    return sources_[rank]->transport->Start(MakeTransfer(), [this](absl::Status status) { done_.Put(status); });
  }
  ReceiveRequest MakeRequest(int32_t place) {
    Receiver& receiver = *receivers_[taking_part_[place]];
    Transfer transfer = MakeTransfer();
    ReceiveRequest request;
    request.attempt = attempt_;
    request.sources = transfer.sources;
    request.receivers = transfer.receivers;
    request.group = transfer.group;
    request.self = place;
    request.world = plan_.destinations();
    request.replicas = static_cast<int32_t>(taking_part_.size()) / request.world;
    request.copies = CopiesTo(place % request.world);
    request.deadline = Clock::Real()->Now() + deadline_;
    request.on_arrived = [&receiver](ByteRange range, void*) {
      for (int64_t at = range.begin; at < range.end; ++at) ++receiver.arrivals[at];
    };
    return request;
  }
  // The `place`-th participating receiver.
  absl::Status ReceiveOne(int32_t place) {
    Receiver& receiver = *receivers_[taking_part_[place]];
    receiver.arrivals.assign(receiver.bytes.size(), 0);
    receiver.bytes.assign(receiver.bytes.size(), 0);
    return receiver.transport->Receive(MakeRequest(place), receiver.bytes.data(), receiver.stop.get_token());
  }
  // Begins a rehearsal with all members; `connected` gets the result of each source and each receiver.
  void BeginRehearsal(Mailbox<absl::Status>* connected, std::vector<int> taking_part = {},
                      absl::Duration deadline = absl::Seconds(20)) {
    ASSERT_THAT(Prepare(0, std::move(taking_part), deadline, /*rehearsal=*/true), testing::IsOk());
    for (auto& source : sources_) {
      auto done = [connected](const absl::Status& status) { connected->Put(status); };
      ASSERT_THAT(source->transport->Start(MakeTransfer(), done), testing::IsOk());
    }
    for (size_t place = 0; place < taking_part_.size(); ++place) {
      receivers_[taking_part_[place]]->transport->Connect(
          MakeRequest(static_cast<int32_t>(place)),
          [connected](const absl::Status& status) { connected->Put(status); });
    }
  }
  size_t taking_part() const { return sources_.size() + taking_part_.size(); }
  // Runs all members at once; returns the results of the receivers.
  std::vector<absl::Status> Exchange() {
    for (size_t rank = 0; rank < sources_.size(); ++rank) EXPECT_THAT(Start(rank), testing::IsOk());
    return ReceiveAtOnce(taking_part_.size(), [this](int32_t place) { return ReceiveOne(place); });
  }
  void Finish() {
    for (auto& source : sources_) source->transport->Close(attempt_);
    for (int index : taking_part_) receivers_[index]->transport->Close(attempt_);
  }
  void ExpectArrived(int32_t place) {
    const Receiver& receiver = *receivers_[taking_part_[place]];
    ExpectCopied(
        CopiesTo(place % plan_.destinations()), [this](int32_t rank) { return sources_[rank]->staged.data(); },
        receiver.bytes.data(), receiver.arrivals, place);
  }
  void ExpectSyncs(int64_t step) {
    const size_t before = done_.size();
    Stage(step);
    ASSERT_THAT(Prepare(step), testing::IsOk());
    EXPECT_THAT(Exchange(), ::testing::Each(testing::IsOk()));
    for (size_t i = 0; i < receivers_.size(); ++i) ExpectArrived(static_cast<int32_t>(i));
    ASSERT_TRUE(done_.WaitFor(before + sources_.size())) << "each source reports that it has sent";
    Finish();
  }

  // After Prepare: removes that receiver from the attempt.
  void LeaveOut(int index) { std::erase(taking_part_, index); }

  nccl::FakeNetwork* network() { return &network_; }
  Mailbox<absl::Status>* done() { return &done_; }
  Source* source(size_t rank = 0) { return sources_[rank].get(); }
  Receiver* receiver(size_t index = 0) { return receivers_[index].get(); }
  size_t receivers() const { return receivers_.size(); }

 private:
  nccl::GroupWorker::DeviceFactory GetDevice(nccl::FakeDeviceControl* control) {
    return [this, control] { return std::make_unique<nccl::FakeDevice>(&network_, control); };
  }
  void AddSource(int32_t rank) {
    auto source = std::make_unique<Source>(plan_.send_bytes(rank));
    source->member.id = TrainerId("t", rank, plan_.sources());
    NcclSource::Options options;
    options.rank = rank;
    options.manifest = manifest_;
    options.facts = {22809, absl::StrCat("GPU-t", rank)};
    options.rounds = {4, 1024};
    source->transport = *NcclSource::Create(options, &source->staged, GetDevice(&source->control),
                                            [this]() -> absl::StatusOr<nccl::UniqueId> { return network_.NewId(); });
    sources_.push_back(std::move(source));
  }
  void AddReceiver(int32_t index) {
    auto receiver = std::make_unique<Receiver>();
    const int32_t world = plan_.destinations();
    receiver->member.id = RollouterId(index / world, "r", index % world, world);
    int64_t bytes = 0;
    for (const Copy& copy : plan_.CopiesTo(index % world))
      bytes = std::max(bytes, copy.destination_offset + copy.bytes);
    receiver->bytes.resize(static_cast<size_t>(bytes));
    NcclReceiver::Options options;
    options.facts = {22809, absl::StrCat("GPU-r", index)};
    options.rounds = {4, 1024};
    receiver->transport = *NcclReceiver::Create(options, GetDevice(&receiver->control));
    receivers_.push_back(std::move(receiver));
  }

  const std::shared_ptr<Manifest> manifest_;
  const std::string source_layout_;
  const std::string destination_layout_;
  const SyncPlan plan_;
  nccl::FakeNetwork network_;
  Mailbox<absl::Status> done_;
  std::vector<std::unique_ptr<Source>> sources_;
  std::vector<std::unique_ptr<Receiver>> receivers_;
  Subset subset_;
  std::vector<int> taking_part_;
  absl::Duration deadline_;
  int64_t attempts_ = 0;
  int64_t attempt_ = 0;
};

}  // namespace syncopate::synchronizer
