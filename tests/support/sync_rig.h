#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "synchronizer/plan/layout.h"
#include "synchronizer/plan/pack.h"
#include "synchronizer/plan/sync_plan.h"
#include "synchronizer/transport/arena_pair.h"
#include "synchronizer/transport/send_arena.h"
#include "synchronizer/transport/weight_receiver.h"
#include "synchronizer/transport/weight_source.h"
#include "tests/support/faulty_store.h"
#include "tests/support/synchronizer_fixtures.h"
#include "tests/support/transport_harness.h"

namespace syncopate::synchronizer {

// An ArenaPair that can sleep as an engine does: at level 2 it loses its weights.
class SleepingPair final : public WeightTarget {
 public:
  explicit SleepingPair(int64_t arena_bytes) : bytes_(arena_bytes), pair_(arena_bytes) {}

  void Sleep(int level) {
    sleep_ = AfterSleep(sleep_, level);
    if (level < 2) return;
    std::memset(pair_.shadow(), 0, static_cast<size_t>(bytes_));
    std::memset(const_cast<char*>(pair_.live()), 0, static_cast<size_t>(bytes_));
  }

  char* shadow() override { return pair_.shadow(); }
  const char* live() const { return pair_.live(); }
  PolicyVersion serving() const { return pair_.serving(); }
  absl::StatusOr<InstallResult> Install(const PolicyVersion& version, uint64_t digest,
                                        absl::Duration deadline) override {
    sleep_.slept = false;
    return pair_.Install(version, digest, deadline);
  }
  absl::StatusOr<InstallResult> Relabel(const PolicyVersion& version, absl::Duration deadline) override {
    return pair_.Relabel(version, deadline);
  }
  bool can_copy_live() const override { return true; }
  absl::Status CopyLive(const std::vector<ByteRange>& ranges) override { return pair_.CopyLive(ranges); }
  ReceiverWeights LastSleep() const override { return sleep_; }

 private:
  const int64_t bytes_;
  ArenaPair pair_;
  ReceiverWeights sleep_;
};

// One source and one receiver over a transport, driven as the synchronizer drives them.
class SyncRig {
 public:
  SyncRig(TransportHarness* harness, const Manifest& manifest, int slots = 2)
      : harness_(harness),
        manifest_(manifest),
        plan_(*SyncPlan::Create(manifest, Layout::FlatShards(manifest, 1), Layout::Whole(manifest, 1))),
        arena_(MakeArena(slots)),
        store_(arena_.get()),
        end_(harness->AddSource(&store_)),
        source_(&store_, {end_}, {}) {
    AddReceiver();
  }
  ~SyncRig() { harness_->KillSource(end_); }  // the server of a process goes before its weights

  struct Receiver {
    explicit Receiver(int64_t bytes, MemberId id) : id(std::move(id)), target(bytes) {}
    const MemberId id;
    SleepingPair target;
    int damaged = 0;  // how often a check has found its weights damaged
    std::unique_ptr<WeightReceiver> receiver;
  };

  Receiver* AddReceiver() {
    auto added =
        std::make_unique<Receiver>(manifest_.arena_bytes(), RollouterId(static_cast<int>(receivers_.size()), "r"));
    WeightReceiver::Options options{manifest_, added->id};
    options.on_damaged = [to = added.get()](const absl::Status&) { ++to->damaged; };
    added->receiver = std::make_unique<WeightReceiver>(options, &added->target,
                                                       std::vector<ReceiverTransport*>{harness_->receiver()});
    receivers_.push_back(std::move(added));
    return receivers_.back().get();
  }
  Receiver* receiver(size_t index = 0) { return receivers_[index].get(); }

  void Stage(int64_t step) {
    Stage(step, [this, step](char* bytes) { return FillWeights(manifest_, step, bytes); });
    subset_ = {};
  }
  // A version in which only these tensors differ from those of the other versions.
  void StageAdapters(int64_t step, const Subset& subset) {
    Stage(step, [&](char* bytes) { return FillAdapters(manifest_, subset.base_digest, subset.adapters, step, bytes); });
    subset_ = subset;
  }

  Prepare Offer(absl::Duration deadline = absl::Seconds(20)) {
    Prepare prepare;
    prepare.attempt = ++attempt_;
    prepare.version = staged_.version;
    prepare.digest = staged_.digest;
    prepare.manifest_fingerprint = manifest_.fingerprint();
    prepare.plan_hash =
        SyncPlan::Create(manifest_, Layout::FlatShards(manifest_, 1), Layout::Whole(manifest_, 1))->hash();
    prepare.transport = end_->name();
    prepare.deadline = deadline;
    prepare.receivers = 1;
    prepare.sources = 1;
    prepare.subset = subset_;
    return prepare;
  }

  // Calls Prepare on both ends, then Transfer. The attempt stays open.
  absl::StatusOr<WeightReceiver::Received> Move(Receiver* to, const Prepare& prepare) {
    SYNCOPATE_ASSIGN_OR_RETURN(std::string rendezvous, source_.Prepare(prepare));
    SYNCOPATE_ASSIGN_OR_RETURN(WeightReceiver::Prepared prepared, to->receiver->Prepare(prepare));
    Transfer transfer = TransferFor(to, prepare, rendezvous);
    transfer.receivers[0].base = needs_base_(prepared.weights);
    return to->receiver->Transfer(transfer);
  }
  Transfer TransferFor(Receiver* to, const Prepare& prepare, const std::string& rendezvous) const {
    Transfer transfer;
    transfer.attempt = prepare.attempt;
    transfer.sources = {{TrainerId("t"), rendezvous}};
    transfer.receivers = {{to->id, "", true}};
    transfer.bucket_digests = staged_.bucket_digests;
    return transfer;
  }

  void Finish(Receiver* to, int64_t attempt) {
    to->receiver->Finish(attempt);
    source_.Finish(attempt);
  }

  // Runs one whole sync of the staged version.
  absl::Status Sync(Receiver* to, absl::Duration deadline = absl::Seconds(20)) {
    Prepare prepare = Offer(deadline);
    absl::Status status = Move(to, prepare).status();
    if (status.ok()) status = to->receiver->Install({prepare.attempt}).status();
    Finish(to, prepare.attempt);
    return status;
  }

  // Sets which receivers get the base weights; it replaces the answer of NeedsBase.
  void SetNeedsBase(std::function<bool(const ReceiverWeights&)> needs_base) { needs_base_ = std::move(needs_base); }

  // Whether the receiver has exactly the bits of `step`, which was staged with the present subset.
  bool HasBits(const Receiver& receiver, int64_t step) const {
    std::vector<char> expected(manifest_.arena_bytes(), 0);
    const absl::Status filled = FillAdapters(manifest_, subset_.base_digest, subset_.adapters, step, expected.data());
    return filled.ok() && std::memcmp(expected.data(), receiver.target.live(), expected.size()) == 0;
  }

  // Checks that the receiver serves exactly the weights of `step`, which was staged with the present subset.
  void ExpectServes(Receiver* receiver, int64_t step) {
    EXPECT_EQ(receiver->receiver->serving(), (PolicyVersion{1, step}));
    EXPECT_EQ(receiver->target.serving(), (PolicyVersion{1, step}));
    std::vector<char> expected(manifest_.arena_bytes(), 0);
    ASSERT_TRUE((subset_.adapters.empty()
                     ? FillWeights(manifest_, step, expected.data())
                     : FillAdapters(manifest_, subset_.base_digest, subset_.adapters, step, expected.data()))
                    .ok());
    EXPECT_EQ(std::memcmp(expected.data(), receiver->target.live(), expected.size()), 0) << "bits differ";
  }

  SendArena* arena() { return arena_.get(); }
  FaultyStore* store() { return &store_; }
  SourceTransport* end() { return end_; }
  WeightSource* source() { return &source_; }
  const SendArena::Staged& staged() const { return staged_; }

 private:
  // The buckets that are sent are the manifest's, unless there is a gap before adapters, which none contains.
  bool has_gap() const { return plan_.StagedBuckets(0) != manifest_.buckets(); }
  std::unique_ptr<SendArena> MakeArena(int slots) const {
    return has_gap() ? *SendArena::CreateForPlan(manifest_, plan_, 0, {.slots = slots})
                     : *SendArena::Create(manifest_, {.slots = slots});
  }
  void Stage(int64_t step, const SendArena::Fill& fill) {
    auto staged = arena_->Stage({1, step}, [this, &fill](char* bytes) -> absl::Status {
      if (!has_gap()) return fill(bytes);
      std::vector<char> whole(static_cast<size_t>(manifest_.arena_bytes()), 0);
      SYNCOPATE_RETURN_IF_ERROR(fill(whole.data()));
      PackOnHost(plan_.pack(0), whole.data(), bytes);
      return absl::OkStatus();
    });
    ASSERT_TRUE(staged.ok()) << staged.status();
    staged_ = *staged;
  }

  TransportHarness* const harness_;
  const Manifest manifest_;
  const SyncPlan plan_;
  std::unique_ptr<SendArena> arena_;
  FaultyStore store_;
  SourceTransport* const end_;
  WeightSource source_;
  std::vector<std::unique_ptr<Receiver>> receivers_;
  std::function<bool(const ReceiverWeights&)> needs_base_ = NeedsBase;
  SendArena::Staged staged_;
  Subset subset_;
  int64_t attempt_ = 0;
};

}  // namespace syncopate::synchronizer
