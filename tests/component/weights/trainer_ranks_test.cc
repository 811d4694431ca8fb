// Every rank of a trainer as a source: policies on thread ranks, a WeightService for each rank, and receivers over
// gRPC.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/half.h"
#include "base/mutex.h"
#include "model/model_config.h"
#include "rollouter/engine/rank_slice.h"
#include "services/member/grpc_transport.h"
#include "services/member/weight_service.h"
#include "services/rpc/server.h"
#include "synchronizer/plan/layout_text.h"
#include "synchronizer/transport/arena_pair.h"
#include "synchronizer/transport/weight_receiver.h"
#include "tests/support/policy_copy.h"
#include "tests/support/small_model.h"
#include "tests/support/status_matchers.h"
#include "tests/support/training_groups.h"
#include "tools/twin/trainer_ranks.h"

namespace syncopate::twin {
namespace {

using synchronizer::ArenaPair;
using synchronizer::WeightReceiver;
using testing::IsOk;

constexpr int kReplicas = 2;
constexpr int kSlots = 2;
constexpr absl::Duration kSilence = absl::Milliseconds(300);

// Counts the bytes that are read from a store.
class CountingStore final : public synchronizer::WeightStore {
 public:
  explicit CountingStore(synchronizer::WeightStore* store) : store_(store) {}
  uint64_t fingerprint() const override { return store_->fingerprint(); }
  uint64_t plan_hash() const override { return store_->plan_hash(); }
  absl::StatusOr<std::unique_ptr<synchronizer::WeightReader>> Open(PolicyVersion version) override {
    SYNCOPATE_ASSIGN_OR_RETURN(auto reader, store_->Open(version));
    return std::unique_ptr<synchronizer::WeightReader>(new Reader(this, std::move(reader)));
  }
  int64_t TakeBytes() { return bytes_.exchange(0); }
  int TakeReads() { return reads_.exchange(0); }
  // From its read number `read` on, counted from 1, the source is gone, or silent for kSilence or until Heal(). A
  // silent source occupies a thread of gRPC, which it shares with the receivers of this process, so it may not be
  // silent for long.
  enum class Fault { kGone, kSilent };
  void FailFrom(int read, Fault fault) {
    MutexLock lock(&mutex_);
    reads_ = 0;
    fails_from_ = read;
    fault_ = fault;
  }
  void Heal() {
    MutexLock lock(&mutex_);
    fails_from_ = 0;
  }

 private:
  absl::Status BeginRead() {
    const int read = ++reads_;
    MutexLock lock(&mutex_);
    if (fails_from_ == 0 || read < fails_from_) return absl::OkStatus();
    auto healed = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return fails_from_ == 0; };
    if (fault_ == Fault::kSilent) mutex_.AwaitWithTimeout(Condition(&healed), kSilence);
    return absl::UnavailableError("gone");
  }

  class Reader final : public synchronizer::WeightReader {
   public:
    Reader(CountingStore* store, std::unique_ptr<synchronizer::WeightReader> reader)
        : store_(store), reader_(std::move(reader)) {}
    absl::Status Read(ByteRange range, char* to) override {
      SYNCOPATE_RETURN_IF_ERROR(store_->BeginRead());
      store_->bytes_ += range.size();
      return reader_->Read(range, to);
    }

   private:
    CountingStore* const store_;
    const std::unique_ptr<synchronizer::WeightReader> reader_;
  };

  synchronizer::WeightStore* const store_;
  std::atomic<int64_t> bytes_ = 0;
  std::atomic<int> reads_ = 0;
  Mutex mutex_;
  int fails_from_ ABSL_GUARDED_BY(mutex_) = 0;
  Fault fault_ ABSL_GUARDED_BY(mutex_) = Fault::kGone;
};

struct Source {
  explicit Source(synchronizer::WeightStore* staged)
      : store(staged), service(&store), server(rpc::Server::Start({}, {&service}).value()) {}
  ~Source() { server->Stop(absl::ZeroDuration()); }
  CountingStore store;
  member::WeightServiceImpl service;
  std::unique_ptr<rpc::Server> server;
};

struct Receiver {
  Receiver(const Manifest& wire, int64_t arena_bytes, const MemberId& member, const std::string& layout)
      : id(member),
        target(arena_bytes),
        receiver({.manifest = wire, .member = member, .layout = layout}, &target, {&transport}) {}
  MemberId id;
  ArenaPair target;
  member::GrpcReceiver transport;
  WeightReceiver receiver;
};

struct Shape {
  int32_t trainer_ranks;
  int32_t rollouter_ranks;
  DType dtype;
};

class TrainerRanksTest : public ::testing::TestWithParam<Shape> {
 protected:
  TrainerRanksTest() {
    options_.model = testing::WideModel();
    // The model is narrow, because this test is about which bytes go where. Matrices still have several blocks of 64
    // elements for each of four ranks; a norm is one block, which one rank has.
    options_.model.vocab_size = 256;
    options_.model.hidden_size = 64;
    options_.model.intermediate_size = 192;
    options_.model.head_dim = 16;
    options_.optimizer.learning_rate = 0.01;
    options_.bucket_bytes = 4096;
    wire_ = model::MakeManifest(options_.model, GetParam().dtype, 4096).value();
    if (GetParam().rollouter_ranks > 1) layout_ = rollouter::TensorParallelLayout(GetParam().rollouter_ranks);
    trainer_ = TrainerRanks::Create(options_, GetParam().trainer_ranks, wire_, kSlots, layout_).value();
    const auto source = synchronizer::BuildLayout(wire_, trainer_->stager().layout()).value();
    const auto destination = synchronizer::BuildLayout(wire_, layout_.empty() ? "whole:1" : layout_).value();
    source_ = std::make_unique<synchronizer::Layout>(source);
    plan_ =
        std::make_unique<synchronizer::SyncPlan>(synchronizer::SyncPlan::Create(wire_, source, destination).value());
    for (int32_t rank = 0; rank < GetParam().trainer_ranks; ++rank) {
      sources_.push_back(std::make_unique<Source>(trainer_->store(rank)));
    }
    for (int replica = 0; replica < kReplicas; ++replica) {
      for (int32_t rank = 0; rank < GetParam().rollouter_ranks; ++rank) {
        const MemberId id{"rollouter", absl::StrCat("rollouter-", replica), rank, GetParam().rollouter_ranks,
                          absl::StrCat("i", replica)};
        receivers_.push_back(std::make_unique<Receiver>(wire_, destination.arena_bytes(rank), id, layout_));
      }
    }
  }

  // Changes the weights of all ranks.
  void Train() {
    const auto before = trainer_->policy().Digest();
    const std::vector<TrajectoryGroup> groups =
        testing::RandomGroups(static_cast<int32_t>(options_.model.vocab_size), 4, 4, 31,
                              [](Trajectory& sample, const testing::Draw&) { sample.logprobs.clear(); });
    ASSERT_THAT(trainer_->policy().SupervisedStep(testing::Pointers(groups)).status(), IsOk());
    EXPECT_NE(*trainer_->policy().Digest(), *before);
  }

  // Syncs `version` to all receivers at once, with the commands of a synchronizer.
  void Sync(const PolicyVersion& version) {
    const auto staged = trainer_->stager().Stage(version);
    ASSERT_TRUE(staged.ok()) << staged.status();
    ASSERT_EQ(static_cast<int64_t>(staged->bucket_digests.size()), plan_->digests());
    for (const absl::Status& status : SyncStaged(*staged, version.step + 1, absl::Seconds(20))) {
      ASSERT_TRUE(status.ok()) << status;
    }
    for (const auto& receiver : receivers_) EXPECT_EQ(receiver->receiver.serving_digest(), staged->digest);
  }

  // The result of an attempt at each receiver.
  std::vector<absl::Status> SyncStaged(const trainer::WeightStager::Staged& staged, int64_t attempt,
                                       absl::Duration deadline) {
    const synchronizer::Prepare prepare{.attempt = attempt,
                                        .version = staged.version,
                                        .digest = staged.digest,
                                        .manifest_fingerprint = wire_.fingerprint(),
                                        .plan_hash = plan_->hash(),
                                        .transport = "grpc",
                                        .deadline = deadline,
                                        .receivers = static_cast<int32_t>(receivers_.size()),
                                        .sources = GetParam().trainer_ranks,
                                        .source_layout = trainer_->stager().layout(),
                                        .destination_layout = layout_.empty() ? "whole:1" : layout_};
    synchronizer::Transfer transfer{.attempt = prepare.attempt, .bucket_digests = staged.bucket_digests};
    for (int32_t rank = 0; rank < GetParam().trainer_ranks; ++rank) {
      transfer.sources.push_back({.id = {"trainer", "trainer-0", rank, GetParam().trainer_ranks, "t"},
                                  .rendezvous = sources_[static_cast<size_t>(rank)]->server->address()});
    }
    for (const auto& receiver : receivers_) transfer.receivers.push_back({.id = receiver->id, .rendezvous = {}});
    std::vector<absl::Status> statuses(receivers_.size());
    {
      std::vector<std::jthread> threads;
      for (size_t i = 0; i < receivers_.size(); ++i) {
        threads.emplace_back([&, i] { statuses[i] = Receive(receivers_[i]->receiver, prepare, transfer); });
      }
    }
    return statuses;
  }

  static absl::Status Receive(WeightReceiver& receiver, const synchronizer::Prepare& prepare,
                              const synchronizer::Transfer& transfer) {
    const auto prepared = receiver.Prepare(prepare);
    absl::Status status = prepared.status();
    if (status.ok() && !prepared->already_serves) status = receiver.Transfer(transfer).status();
    if (status.ok()) status = receiver.Install({prepare.attempt}).status();
    receiver.Finish(prepare.attempt);
    return status;
  }

  // The whole weights in the wire format, taken from the policy itself.
  std::vector<char> WholeWeights() {
    const testing::PolicyCopy copy(trainer_->policy());
    const Manifest& master = trainer_->policy().manifest();
    std::vector<char> whole(static_cast<size_t>(wire_.arena_bytes()), 0);
    for (size_t i = 0; i < wire_.tensors().size(); ++i) {
      const float* const from = copy.parameters().data() + master.ranges()[i].begin / 4;
      char* const to = whole.data() + wire_.ranges()[i].begin;
      for (int64_t at = 0; at < wire_.tensors()[i].NumElements(); ++at) {
        const uint16_t rounded = RoundToBFloat16(from[at]);
        if (GetParam().dtype == DType::kFloat32) std::memcpy(to + 4 * at, from + at, 4);
        if (GetParam().dtype == DType::kBFloat16) std::memcpy(to + 2 * at, &rounded, 2);
      }
    }
    return whole;
  }

  // Checks that every receiver has exactly its slice of the policy's weights.
  void ExpectWeights() {
    const std::vector<char> whole = WholeWeights();
    for (const auto& receiver : receivers_) {
      std::vector<char> slice = whole;
      if (GetParam().rollouter_ranks > 1) {
        const auto cut = rollouter::MakeRankSlice(options_.model, wire_, GetParam().rollouter_ranks).value();
        slice.assign(static_cast<size_t>(cut.manifest.arena_bytes()), 0);
        rollouter::CopyRankSlice(wire_, cut, receiver->id.rank, whole.data(), slice.data());
      }
      EXPECT_EQ(std::memcmp(receiver->target.live(), slice.data(), slice.size()), 0) << receiver->id.rank;
    }
  }

  // Checks that every source has served exactly the bytes of its pieces, once to each receiver that needs them.
  void ExpectBytesBySource() {
    int64_t sum = 0;
    for (int32_t rank = 0; rank < GetParam().trainer_ranks; ++rank) {
      int64_t planned = 0;
      for (const synchronizer::Copy& copy : plan_->copies()) planned += copy.source == rank ? copy.bytes : 0;
      EXPECT_EQ(sources_[static_cast<size_t>(rank)]->store.TakeBytes(), kReplicas * planned) << rank;
      sum += planned;
      if (GetParam().rollouter_ranks > 1) continue;
      int64_t pieces = 0, gaps = 0;
      for (const synchronizer::Piece& piece : source_->pieces()) {
        if (piece.rank != rank) continue;
        pieces += piece.elements() * DTypeBytes(GetParam().dtype);
        gaps += Manifest::kAlignment;
      }
      EXPECT_GE(planned, pieces) << rank;
      EXPECT_LT(planned, pieces + gaps) << rank;
      EXPECT_LE(trainer_->send_bytes(rank), kSlots * (pieces + gaps) + (1 << 20)) << rank;
    }
    EXPECT_EQ(sum, plan_->bytes());
  }

  trainer::PolicyTrainer::Options options_;
  Manifest wire_;
  std::string layout_;
  std::unique_ptr<TrainerRanks> trainer_;
  std::unique_ptr<synchronizer::Layout> source_;
  std::unique_ptr<synchronizer::SyncPlan> plan_;
  std::vector<std::unique_ptr<Source>> sources_;
  std::vector<std::unique_ptr<Receiver>> receivers_;
};

TEST_P(TrainerRanksTest, EachRankSendsItsShardAndReceiversHaveOneDigest) {
  Sync({1, 0});
  ExpectWeights();
  ExpectBytesBySource();
  ASSERT_NO_FATAL_FAILURE(Train());
  Sync({1, 1});
  ExpectWeights();
  ExpectBytesBySource();
}

// The ranks train while the previous version is staged: that version is copied before the update of each rank, by the
// thread that stages or the thread that trains.
TEST_P(TrainerRanksTest, AStagingBesideAStepGivesTheDigestsOfOneAlone) {
  const auto alone = trainer_->stager().Stage({1, 0});
  ASSERT_THAT(alone.status(), IsOk());
  ASSERT_THAT(trainer_->stager().Launch({1, 1}), IsOk());
  ASSERT_NO_FATAL_FAILURE(Train());
  const auto beside = trainer_->stager().Await();
  ASSERT_THAT(beside.status(), IsOk());
  EXPECT_EQ(beside->bucket_digests, alone->bucket_digests);
  EXPECT_EQ(beside->digest, alone->digest);
}

class LostTrainerRankTest : public TrainerRanksTest {};

// Rank 1 dies or is silent at the first read of a transfer, at one in the middle, or at the last.
TEST_P(LostTrainerRankTest, ARankThatIsGoneAtAnyStageOfATransferLeavesTheOldVersionServing) {
  Sync({1, 0});
  CountingStore& rank1 = sources_[1]->store;
  const int reads = rank1.TakeReads();
  ASSERT_GE(reads, kReplicas);
  ASSERT_NO_FATAL_FAILURE(Train());
  const auto staged = trainer_->stager().Stage({1, 1});
  ASSERT_THAT(staged.status(), IsOk());
  int64_t attempt = 100;
  for (const int read : {1, (reads + 1) / 2, reads}) {
    for (const auto fault : {CountingStore::Fault::kGone, CountingStore::Fault::kSilent}) {
      const bool is_silent = fault == CountingStore::Fault::kSilent;
      if (is_silent && read != 1) continue;  // a silent rank costs a whole deadline at each read
      rank1.FailFrom(read, fault);
      int failed = 0;
      for (const absl::Status& status : SyncStaged(*staged, attempt++, absl::Milliseconds(is_silent ? 100 : 20000))) {
        if (status.ok()) continue;
        ++failed;
        EXPECT_EQ(ErrorReason(status), is_silent ? "DEADLINE" : "PEER_LOST") << status;
      }
      EXPECT_GT(failed, 0) << read;
      rank1.Heal();
    }
  }
  // A receiver that had the version is not asked again; the others get it from all ranks.
  for (const absl::Status& status : SyncStaged(*staged, attempt, absl::Seconds(20))) {
    EXPECT_TRUE(status.ok() || ErrorReason(status) == "OLD_VERSION") << status;
  }
  ExpectWeights();
}

std::vector<Shape> AllShapes() {
  std::vector<Shape> shapes;
  for (int32_t trainer : {1, 2, 3, 4}) {
    for (int32_t rollouter : {1, 2}) {
      for (DType dtype : {DType::kFloat32, DType::kBFloat16}) shapes.push_back({trainer, rollouter, dtype});
    }
  }
  return shapes;
}

INSTANTIATE_TEST_SUITE_P(Shapes, TrainerRanksTest, ::testing::ValuesIn(AllShapes()), [](const auto& info) {
  return absl::StrCat(info.param.trainer_ranks, "To", info.param.rollouter_ranks, DTypeName(info.param.dtype));
});

INSTANTIATE_TEST_SUITE_P(Shapes, LostTrainerRankTest,
                         ::testing::Values(Shape{2, 1, DType::kFloat32}, Shape{3, 2, DType::kBFloat16}));

}  // namespace
}  // namespace syncopate::twin
