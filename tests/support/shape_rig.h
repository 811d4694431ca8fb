#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "synchronizer/attempts/sync_attempt.h"
#include "synchronizer/transport/plan_cache.h"
#include "synchronizer/transport/weight_receiver.h"
#include "synchronizer/transport/weight_source.h"
#include "tests/support/notification.h"
#include "tests/support/qwen_tensors.h"
#include "tests/support/synchronizer_fixtures.h"
#include "tests/support/transport_harness.h"

namespace syncopate::synchronizer {

// A model that every layout can divide, small enough to be inspected byte by byte: one transformer layer with grouped
// queries, whose tensors have the names of Hugging Face.
inline Manifest TinyTransformer(DType dtype) {
  const std::string layer = "model.layers.0.";
  auto manifest = Manifest::Create(testing::AsQwen({{"model.embed_tokens.weight", dtype, {66, 32}},
                                                    {layer + "input_layernorm.weight", dtype, {32}},
                                                    {layer + "self_attn.q_proj.weight", dtype, {32, 32}},
                                                    {layer + "self_attn.k_proj.weight", dtype, {16, 32}},
                                                    {layer + "self_attn.v_proj.weight", dtype, {16, 32}},
                                                    {layer + "self_attn.o_proj.weight", dtype, {32, 32}},
                                                    {layer + "self_attn.q_norm.weight", dtype, {8}},
                                                    {layer + "self_attn.k_norm.weight", dtype, {8}},
                                                    {layer + "post_attention_layernorm.weight", dtype, {32}},
                                                    {layer + "mlp.gate_proj.weight", dtype, {48, 32}},
                                                    {layer + "mlp.up_proj.weight", dtype, {48, 32}},
                                                    {layer + "mlp.down_proj.weight", dtype, {32, 48}},
                                                    {"model.norm.weight", dtype, {32}},
                                                    {"lm_head.weight", dtype, {66, 32}}},
                                                   /*head=*/8),
                                   1024);
  SYNCOPATE_CHECK(manifest.ok());
  return *std::move(manifest);
}

struct SyncShape {
  std::string source_layout;
  int32_t sources = 1;
  std::string destination_layout;
  int32_t world = 1;
  int replicas = 1;
  DType dtype = DType::kBFloat16;  // wire dtype of the manifest
};

// T source ranks and M replicas of P ranks over a transport, driven as the synchronizer drives them.
class ShapeRig {
 public:
  ShapeRig(TransportHarness* harness, const SyncShape& shape)
      : harness_(harness), shape_(shape), manifest_(std::make_shared<const Manifest>(TinyTransformer(shape.dtype))) {
    auto planned =
        PlanCache(manifest_).Get({shape.source_layout, shape.sources, shape.destination_layout, shape.world});
    SYNCOPATE_CHECK(planned.ok());
    planned_ = *std::move(planned);
    for (int32_t rank = 0; rank < shape.sources; ++rank) AddSource(rank);
    for (int i = 0; i < shape.replicas; ++i) AddReplica(shape.destination_layout);
  }
  ~ShapeRig() {
    for (const auto& source : sources_) harness_->KillSource(source->end);
  }

  // False if the harness has too few places for all members: the test must be skipped.
  bool complete() const {
    int members = static_cast<int>(sources_.size());
    for (const auto& ranks : replicas_) members += static_cast<int>(ranks.size());
    return complete_ && harness_->CanHold(members);
  }

  // Adds a replica whose ranks announce the layout `layout`; returns its index.
  int AddReplica(const std::string& layout) {
    const int index = static_cast<int>(replicas_.size());
    std::vector<std::unique_ptr<Receiver>> ranks;
    for (int32_t rank = 0; rank < shape_.world; ++rank) {
      const bool first = index == 0 && rank == 0;
      ReceiverTransport* end = first ? harness_->receiver() : harness_->AddReceiver();
      complete_ = complete_ && end != nullptr;
      if (end == nullptr) break;
      ranks.push_back(std::make_unique<Receiver>());
      ranks.back()->memory = harness_->MakeTarget(planned_->destination.arena_bytes(rank));
      WeightReceiver::Options options{*manifest_, RollouterId(index, "r", rank, shape_.world), layout};
      ranks.back()->receiver = std::make_unique<WeightReceiver>(options, ranks.back()->memory->target(),
                                                                std::vector<ReceiverTransport*>{end});
    }
    replicas_.push_back(std::move(ranks));
    return index;
  }

  void Stage(int64_t step) {
    version_ = {1, step};
    digests_.clear();
    for (int32_t rank = 0; rank < shape_.sources; ++rank) {
      auto part = sources_[rank]->memory->Stage(
          version_, LayoutContents(*manifest_, planned_->source, rank, static_cast<uint64_t>(step)));
      ASSERT_TRUE(part.ok()) << part.status();
      EXPECT_EQ(static_cast<int64_t>(part->size()), planned_->plan.ComputeDigests(rank).size());
      digests_.insert(digests_.end(), part->begin(), part->end());
    }
    staged_[step] = digests_;
  }
  // Selects which staged version the next Sync sends; the default is the newest.
  void Offer(int64_t step) {
    version_ = {1, step};
    digests_ = staged_.at(step);
  }
  PolicyVersion serving(int replica) const { return replicas_[replica][0]->memory->serving(); }

  // Runs whole replicas and all sources; returns the result of each.
  std::vector<absl::Status> Rehearse(const std::vector<int>& replicas) {
    Prepare prepare = MakePrepare();
    prepare.rehearsal = true;
    prepare.version = {};
    prepare.digest = 0;
    Transfer transfer{.attempt = prepare.attempt};
    for (const auto& source : sources_) {
      prepare.source = true;
      auto rendezvous = source->source->Prepare(prepare);
      if (!rendezvous.ok()) return {rendezvous.status()};
      transfer.sources.push_back({source->id, *rendezvous});
    }
    prepare.source = false;
    for (int replica : replicas) {
      for (int32_t rank = 0; rank < shape_.world; ++rank) {
        auto rendezvous = replicas_[replica][rank]->receiver->PrepareRehearsal(prepare);
        if (!rendezvous.ok()) return {rendezvous.status()};
        transfer.receivers.push_back({RollouterId(replica, "r", rank, shape_.world), *rendezvous, true});
      }
    }
    transfer.group = GetName(transfer);
    Mailbox<absl::Status> connected;
    for (const auto& source : sources_) {
      source->source->Transfer(transfer, [&connected](const absl::Status& status) { connected.Put(status); });
    }
    for (int replica : replicas) {
      for (const auto& rank : replicas_[replica]) {
        rank->receiver->Connect(
            transfer, [&connected](const absl::StatusOr<double>& seconds) { connected.Put(seconds.status()); });
      }
    }
    EXPECT_TRUE(connected.WaitFor(transfer.sources.size() + transfer.receivers.size()));
    for (const auto& source : sources_) source->source->Finish(prepare.attempt);
    for (int replica : replicas) {
      for (const auto& rank : replicas_[replica]) rank->receiver->Finish(prepare.attempt);
    }
    return connected.All();
  }

  // Runs a sync to a replica of one rank, whose only source dies after all members have agreed. The rig is unusable
  // afterwards.
  absl::Status SyncFromTheDead(int replica, absl::Duration deadline) {
    prepare_ = MakePrepare();
    prepare_.deadline = deadline;
    SYNCOPATE_ASSIGN_OR_RETURN(std::string rendezvous, sources_[0]->source->Prepare(prepare_));
    Transfer transfer{.attempt = prepare_.attempt, .bucket_digests = digests_};
    transfer.sources.push_back({sources_[0]->id, std::move(rendezvous)});
    SYNCOPATE_RETURN_IF_ERROR(PrepareReplica(replica, &transfer));
    transfer.group = GetName(transfer);
    sources_[0]->source->Finish(prepare_.attempt);
    harness_->KillSource(sources_[0]->end);
    const absl::Status status = replicas_[replica][0]->receiver->Transfer(transfer).status();
    replicas_[replica][0]->receiver->Finish(prepare_.attempt);
    return status;
  }

  // Runs one whole sync of the staged version to these replicas; returns the result of each.
  std::map<int, absl::Status> Sync(const std::vector<int>& replicas) {
    prepare_ = MakePrepare();
    std::map<int, absl::Status> statuses;
    Transfer transfer{.attempt = prepare_.attempt, .bucket_digests = digests_};
    prepare_.source = true;
    for (const auto& source : sources_) {
      auto rendezvous = source->source->Prepare(prepare_);
      if (!rendezvous.ok()) {  // a failed rendezvous ends the attempt for all members
        for (int replica : replicas) statuses[replica] = rendezvous.status();
        for (const auto& other : sources_) other->source->Finish(prepare_.attempt);
        return statuses;
      }
      transfer.sources.push_back({source->id, *rendezvous});
    }
    prepare_.source = false;
    std::vector<int> agreed;
    for (int replica : replicas) {
      statuses[replica] = PrepareReplica(replica, &transfer);
      if (statuses[replica].ok()) agreed.push_back(replica);
    }
    transfer.group = GetName(transfer);
    for (auto& [replica, status] : Move(agreed, transfer)) statuses[replica] = status;
    for (int replica : replicas) {
      for (const auto& rank : replicas_[replica]) {
        if (statuses[replica].ok()) statuses[replica] = rank->receiver->Install({prepare_.attempt}).status();
        rank->receiver->Finish(prepare_.attempt);
      }
    }
    for (const auto& source : sources_) source->source->Finish(prepare_.attempt);
    return statuses;
  }

  // Checks that all ranks of the replica serve exactly their slices of `step`.
  void ExpectServes(int replica, int64_t step) const {
    for (int32_t rank = 0; rank < shape_.world; ++rank) {
      const Receiver& receiver = *replicas_[replica][rank];
      EXPECT_EQ(receiver.memory->serving(), (PolicyVersion{1, step}));
      EXPECT_EQ(receiver.memory->Live(),
                LayoutContents(*manifest_, planned_->destination, rank, static_cast<uint64_t>(step)))
          << "replica " << replica << " rank " << rank;
    }
  }

 private:
  struct Source {
    MemberId id;
    std::unique_ptr<TestArena> memory;
    SourceTransport* end = nullptr;
    std::unique_ptr<WeightSource> source;
  };
  struct Receiver {
    std::unique_ptr<TestTarget> memory;
    std::unique_ptr<WeightReceiver> receiver;
  };

  void AddSource(int32_t rank) {
    auto source = std::make_unique<Source>();
    source->id = TrainerId("t", rank, shape_.sources);
    source->memory = harness_->MakeArena(*manifest_, planned_->plan, rank);
    source->end = harness_->AddSource(source->memory->store());
    source->source =
        std::make_unique<WeightSource>(source->memory->store(), std::vector<SourceTransport*>{source->end},
                                       WeightSource::Options{shape_.source_layout, shape_.destination_layout});
    sources_.push_back(std::move(source));
  }

  Prepare MakePrepare() {
    Prepare prepare;
    prepare.attempt = ++attempt_;
    prepare.version = version_;
    prepare.digest = CombineDigests(digests_);
    prepare.manifest_fingerprint = manifest_->fingerprint();
    prepare.plan_hash = planned_->plan.hash();
    prepare.transport = sources_[0]->end->name();
    prepare.deadline = kTestDeadline;
    prepare.receivers = static_cast<int32_t>(replicas_.size());
    prepare.sources = shape_.sources;
    prepare.source_layout = shape_.source_layout;
    prepare.destination_layout = shape_.destination_layout;
    return prepare;
  }

  absl::Status PrepareReplica(int replica, Transfer* transfer) {
    std::vector<SyncMember> members;
    for (int32_t rank = 0; rank < shape_.world; ++rank) {
      SYNCOPATE_ASSIGN_OR_RETURN(auto prepared, replicas_[replica][rank]->receiver->Prepare(prepare_));
      members.push_back({RollouterId(replica, "r", rank, shape_.world), prepared.rendezvous, true});
    }
    transfer->receivers.insert(transfer->receivers.end(), members.begin(), members.end());
    return absl::OkStatus();
  }

  static std::string GetName(const Transfer& transfer) {
    std::vector<MemberId> sources;
    std::vector<MemberId> receivers;
    for (const SyncMember& member : transfer.sources) sources.push_back(member.id);
    for (const SyncMember& member : transfer.receivers) receivers.push_back(member.id);
    return GroupName(sources, receivers);
  }

  // Runs all receivers at once, each on a thread of its own.
  std::map<int, absl::Status> Move(const std::vector<int>& replicas, const Transfer& transfer) {
    std::map<int, absl::Status> statuses;
    Mailbox<absl::Status> sent;
    for (const auto& source : sources_) {
      source->source->Transfer(transfer, [&sent](absl::Status status) { sent.Put(std::move(status)); });
    }
    Mutex mutex;
    std::vector<std::thread> threads;
    for (int replica : replicas) {
      for (const auto& rank : replicas_[replica]) {
        threads.emplace_back([&, replica, receiver = rank->receiver.get()] {
          absl::Status status = receiver->Transfer(transfer).status();
          MutexLock lock(&mutex);
          statuses[replica].Update(status);
        });
      }
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_TRUE(sent.WaitFor(sources_.size()));
    for (const absl::Status& status : sent.All()) EXPECT_TRUE(status.ok()) << status;
    return statuses;
  }

  TransportHarness* const harness_;
  const SyncShape shape_;
  const std::shared_ptr<const Manifest> manifest_;
  std::shared_ptr<const PlannedLayouts> planned_;
  bool complete_ = true;
  std::vector<std::unique_ptr<Source>> sources_;
  std::vector<std::vector<std::unique_ptr<Receiver>>> replicas_;
  PolicyVersion version_;
  std::vector<uint64_t> digests_;
  std::map<int64_t, std::vector<uint64_t>> staged_;
  Prepare prepare_;
  int64_t attempt_ = 0;
};

}  // namespace syncopate::synchronizer
