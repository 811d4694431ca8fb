// A trainer's base weights in memory of a GPU, which one other process at a time maps as its own base.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/digest.h"
#include "base/status.h"
#include "cuda/cuda_arena.h"
#include "cuda/stream.h"
#include "synchronizer/cuda/cuda_send_arena.h"
#include "synchronizer/cuda/cuda_shared_base.h"
#include "synchronizer/cuda/shard_bases.h"
#include "synchronizer/ipc/base_lending.h"
#include "synchronizer/plan/layout_text.h"
#include "synchronizer/plan/pack.h"
#include "tests/gpu/gpu_support.h"
#include "tests/support/eventually.h"
#include "tests/support/process.h"
#include "tests/support/status_matchers.h"

namespace syncopate::synchronizer {
namespace {

using ::syncopate::testing::Eventually;
using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;
using ::syncopate::testing::Process;
using ::syncopate::testing::TempDir;

constexpr absl::Duration kDeadline = absl::Seconds(60);
constexpr int64_t kBucketBytes = 64 << 10;
constexpr int32_t kSets = 3;
constexpr char kWritten = 0x11;    // in free rows, by the process that maps the base
constexpr uint64_t kAnother = 99;  // a process that maps nothing
constexpr char kBorrowFlag[] = "--borrow";

// Matrices with free rows behind them, a vector, and adapters.
Manifest AdaptedModel() {
  std::vector<TensorSpec> tensors;
  for (int32_t layer = 0; layer < 12; ++layer) {
    const std::string prefix = absl::StrCat("layers.", layer, ".");
    tensors.push_back(
        {.name = prefix + "q", .dtype = DType::kBFloat16, .shape = {384, 256}, .unit = layer, .spare_rows = 24});
    tensors.push_back({.name = prefix + "norm", .dtype = DType::kBFloat16, .shape = {100}, .unit = layer});
    tensors.push_back(
        {.name = prefix + "down", .dtype = DType::kBFloat16, .shape = {256, 384}, .unit = layer, .spare_rows = 24});
  }
  tensors.push_back({.name = "a", .dtype = DType::kBFloat16, .shape = {8, 256}, .unit = 12, .adapter = true});
  tensors.push_back({.name = "b", .dtype = DType::kBFloat16, .shape = {384, 8}, .unit = 12, .adapter = true});
  return *Manifest::Create(std::move(tensors), kBucketBytes);
}

std::vector<ByteRange> FreeRows(const Manifest& manifest) {
  std::vector<ByteRange> rows;
  for (size_t i = 0; i < manifest.tensors().size(); ++i) {
    const int64_t bytes = manifest.tensors()[i].SpareBytes(), begin = manifest.ranges()[i].end;
    if (bytes > 0) rows.push_back({begin, begin + bytes});
  }
  return rows;
}

SyncPlan MakePlan(const Manifest& manifest) {
  return *SyncPlan::Create(manifest, *BuildLayout(manifest, "units:1:bf16"), *BuildLayout(manifest, "whole:1"));
}

// The digest of all numbers of the base in an arena on the host.
uint64_t DigestBase(const Manifest& manifest, const SyncPlan& plan, const char* arena) {
  std::vector<uint64_t> digests;
  for (const WireBucket& bucket : plan.BucketsTo(0)) {
    if (bucket.destination_offset >= manifest.adapters_begin()) continue;
    digests.push_back(DigestBytes(arena + bucket.destination_offset, bucket.bytes));
  }
  return CombineDigests(digests);
}

CudaSharedBase::Options RangesOf(const Manifest& manifest) {
  return {.device = 0,
          .ranges = kSets,
          .base_bytes = manifest.adapters_begin(),
          .rest_bytes = manifest.arena_bytes() - manifest.adapters_begin(),
          .maps = true,
          .stand_in_bytes = Manifest::kMappingBytes};
}

std::string Gpu() { return cuda::ReadGpuFacts(0)->gpu_uuid; }

absl::StatusOr<LentMemory> Borrow(const std::string& where, uint64_t fingerprint, uint64_t id) {
  return ipc::BorrowBase(where, fingerprint, {.device = Gpu(), .id = id}, absl::Now() + kDeadline, {});
}

// The process that maps the base: says the digest of what it reads there by one range, writes to all free rows by
// another, and waits to be killed, after it has given the base back if `way` says so.
absl::Status MapAsBorrower(const std::string& where, const std::string& way) {
  const Manifest manifest = AdaptedModel();
  const SyncPlan plan = MakePlan(manifest);
  SYNCOPATE_ASSIGN_OR_RETURN(LentMemory lent, Borrow(where, manifest.fingerprint(), static_cast<uint64_t>(getpid())));
  SYNCOPATE_ASSIGN_OR_RETURN(const auto memory, CudaSharedBase::Create(RangesOf(manifest)));
  SYNCOPATE_RETURN_IF_ERROR(memory->Map(std::move(lent)));
  const std::vector<char> read = ToHost(0, memory->range(1), manifest.adapters_begin());
  std::printf("mapped %016lx\n", DigestBase(manifest, plan, read.data()));
  for (const ByteRange& rows : FreeRows(manifest)) {
    if (cudaMemset(memory->range(2) + rows.begin, kWritten, static_cast<size_t>(rows.size())) != cudaSuccess) {
      return absl::InternalError("cannot write to free rows");
    }
  }
  cudaDeviceSynchronize();
  std::printf("wrote\n");
  std::fflush(stdout);
  if (way == "returns") {
    SYNCOPATE_RETURN_IF_ERROR(memory->Release(/*keep_lent=*/false));
    std::printf("returned\n");
    std::fflush(stdout);
  }
  for (;;) pause();
}

class MappedBaseOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    SYNCOPATE_NEED_GPUS(1);
    arena_ = *CudaSendArena::Create(manifest_, plan_, 0, {.slots = 1, .lends_base = true});
    ASSERT_EQ(arena_->base_bytes(), manifest_.adapters_begin());
    stream_ = *cuda::Stream::Create(0);
    lender_ = *ipc::BaseLender::Create(manifest_.fingerprint());
    shard_.resize(static_cast<size_t>(source_.arena_bytes(0)));
    std::mt19937_64 random(3);
    for (size_t i = 0; i + 1 < shard_.size(); i += 2) {
      const uint16_t finite = static_cast<uint16_t>((random() & 0x807f) | (119 + random() % 16) << 7);
      std::memcpy(&shard_[i], &finite, 2);
    }
    on_device_ = *cuda::DeviceBuffer::Create(0, static_cast<int64_t>(shard_.size()), "a test's shard");
    Stage(1);
  }
  // A version in which the adapters differ from those of the others.
  void Stage(int64_t step) {
    for (const Piece& piece : source_.pieces()) {
      if (manifest_.tensors()[static_cast<size_t>(piece.tensor)].adapter)
        shard_[static_cast<size_t>(piece.offset)] = static_cast<char>(step);
    }
    ToDevice(0, on_device_.data(), shard_.data(), static_cast<int64_t>(shard_.size()));
    auto staged = arena_->Stage({1, step}, FlatShard(manifest_, on_device_.data()), stream_.get(), kDeadline);
    ASSERT_THAT(staged, IsOk());
    digests_ = staged->digests;
  }
  std::vector<char> Expected() const {
    std::vector<char> packed(static_cast<size_t>(plan_.send_bytes(0)), 0);
    PackOnHost(plan_.pack(0), shard_.data(), packed.data());
    return packed;
  }
  // What a receiver of the whole version has, in an arena that was zeros.
  std::vector<char> Receive(int64_t step) {
    std::vector<char> arena(static_cast<size_t>(manifest_.arena_bytes()), 0);
    const std::unique_ptr<WeightReader> reader = *arena_->Open({1, step});
    for (const Copy& copy : plan_.CopiesTo(0)) {
      EXPECT_THAT(
          reader->Read({copy.source_offset, copy.source_offset + copy.bytes}, arena.data() + copy.destination_offset),
          IsOk());
    }
    return arena;
  }
  std::string Lend() { return lender_->Lend(*arena_->LendBase()); }
  std::unique_ptr<Process> StartBorrower(const std::string& where, const std::string& way) {
    Process::Options options;
    options.program = std::filesystem::read_symlink("/proc/self/exe").string();
    options.args = {kBorrowFlag, where, way};
    options.log_path = absl::StrCat(folder_.path(), "/borrower-", ++borrowers_, ".log");
    auto started = Process::Start(options);
    EXPECT_THAT(started, IsOk());
    return *std::move(started);
  }
  void ExpectMaps(Process& borrower) {
    const auto mapped = borrower.WaitForLogLine("mapped", kDeadline);
    ASSERT_THAT(mapped, IsOk());
    EXPECT_EQ(*mapped, absl::StrFormat("mapped %016x", DigestBase(manifest_, plan_, Expected().data())));
    ASSERT_THAT(borrower.WaitForLogLine("wrote", kDeadline), IsOk());
  }
  // The lender sees that a connection is gone in its own time.
  LentMemory BorrowOnceFree(const std::string& where, uint64_t id) const {
    absl::StatusOr<LentMemory> lent;
    EXPECT_TRUE(Eventually(kDeadline, [&] {
      lent = Borrow(where, manifest_.fingerprint(), id);
      return ErrorReason(lent.status()) != "ON_LOAN";
    }));
    EXPECT_THAT(lent, IsOk());
    return lent.ok() ? *std::move(lent) : LentMemory();
  }

  const Manifest manifest_ = AdaptedModel();
  const Layout source_ = *BuildLayout(manifest_, "units:1:bf16");
  const SyncPlan plan_ = MakePlan(manifest_);
  const TempDir folder_;
  int borrowers_ = 0;
  std::vector<char> shard_;
  cuda::DeviceBuffer on_device_;
  cuda::Stream stream_;
  std::unique_ptr<CudaSendArena> arena_;
  std::unique_ptr<ipc::BaseLender> lender_;
  std::vector<uint64_t> digests_;
};

TEST_F(MappedBaseOnGpu, AnotherProcessReadsTheBaseAndWhatItWritesToFreeRowsIsNoPartOfAnyVersion) {
  SYNCOPATE_NEED_GPUS(1);
  const std::vector<uint64_t> first = digests_;
  const std::unique_ptr<Process> borrower = StartBorrower(Lend(), "stays");
  ASSERT_NO_FATAL_FAILURE(ExpectMaps(*borrower));
  {
    const auto reader = *arena_->OpenOnDevice({1, 1});
    for (const ByteRange& rows : FreeRows(manifest_)) {
      const std::vector<char> here = ToHost(0, reader->arena().data() + rows.begin, rows.size());
      ASSERT_EQ(here, std::vector<char>(here.size(), kWritten)) << "it is one memory";
    }
  }
  for (int64_t step = 2; step < 5; ++step) {
    ASSERT_NO_FATAL_FAILURE(Stage(step));
    EXPECT_EQ(digests_, DigestRanges(plan_.StagedBuckets(0), Expected().data())) << step;
    EXPECT_EQ(Receive(step), Expected()) << "another rollouter is sent no free row, at step " << step;
  }
  EXPECT_NE(digests_, first) << "the adapters differ";
}

TEST_F(MappedBaseOnGpu, ALentBaseStaysOnTheDeviceAndTheAdaptersLeave) {
  SYNCOPATE_NEED_GPUS(1);
  const int64_t adapters = arena_->send_bytes() - arena_->base_bytes();
  EXPECT_EQ(arena_->device_bytes(), arena_->base_bytes() + adapters);
  const std::unique_ptr<Process> borrower = StartBorrower(Lend(), "stays");
  ASSERT_NO_FATAL_FAILURE(ExpectMaps(*borrower));
  for (int64_t step = 2; step < 5; ++step) {
    EXPECT_TRUE(arena_->LeaveDevice().value());
    EXPECT_EQ(arena_->device_bytes(), arena_->base_bytes());
    EXPECT_EQ(Receive(step - 1), Expected()) << "the base from the device, the adapters from the host";
    {
      const auto reader = *arena_->OpenOnDevice({1, step - 1});
      EXPECT_EQ(arena_->device_bytes(), arena_->base_bytes() + adapters);
      const auto exported = reader->arena().Export();
      ASSERT_THAT(exported, IsOk());
      EXPECT_EQ(exported->chunks.size(), 2u) << "the base, and the adapters of the slot";
      const auto mapped = cuda::CudaArena::Import(*exported, 0);
      ASSERT_THAT(mapped, IsOk());
      const std::vector<char> there = ToHost(0, (*mapped)->data(), arena_->send_bytes());
      for (const Copy& copy : plan_.CopiesTo(0)) {
        EXPECT_EQ(std::memcmp(there.data() + copy.source_offset, Expected().data() + copy.source_offset,
                              static_cast<size_t>(copy.bytes)),
                  0);
      }
    }
    ASSERT_NO_FATAL_FAILURE(Stage(step));
  }
}

// A trainer computes with the memory that it lends: the base is staged where it is.
TEST_F(MappedBaseOnGpu, ABaseThatIsInTheLentMemoryAlreadyIsStagedThereAndAdaptersComeFromElsewhere) {
  SYNCOPATE_NEED_GPUS(1);
  const std::shared_ptr<const cuda::CudaArena> memory =
      *cuda::CudaArena::Create(manifest_.adapters_begin(), {.what = "the base"});
  const std::vector<char> packed = Expected();
  ToDevice(0, memory->data(), packed.data(), memory->bytes());
  std::vector<const void*> places(manifest_.tensors().size());
  for (const Piece& piece : source_.pieces()) {
    const auto tensor = static_cast<size_t>(piece.tensor);
    places[tensor] = manifest_.tensors()[tensor].adapter ? on_device_.data() + piece.offset
                                                         : memory->data() + manifest_.ranges()[tensor].begin;
  }
  const auto arena = *CudaSendArena::Create(manifest_, plan_, 0, {.slots = 2, .lends_base = true, .base = memory});
  EXPECT_EQ(arena->device_bytes(), memory->bytes() + 2 * (arena->send_bytes() - memory->bytes()));
  const ShardBases bases = SplitShard(source_, 0, places);
  for (int64_t step = 1; step < 4; ++step) {
    ASSERT_NO_FATAL_FAILURE(Stage(step + 1));  // changes the adapters
    const auto staged = arena->Stage({1, step}, bases, stream_.get(), kDeadline);
    ASSERT_THAT(staged, IsOk());
    EXPECT_EQ(staged->digests, digests_) << "as from a shard in one piece, step " << step;
    EXPECT_EQ((*arena->LendBase())->info.id, memory->id());
    EXPECT_EQ(ToHost(0, memory->data(), memory->bytes()),
              std::vector<char>(packed.begin(), packed.begin() + memory->bytes()));
    std::vector<char> sent(static_cast<size_t>(arena->send_bytes()));
    ASSERT_THAT((*arena->Open({1, step}))->Read({0, arena->send_bytes()}, sent.data()), IsOk());
    EXPECT_EQ(sent, Expected());
  }
}

TEST_F(MappedBaseOnGpu, ASecondProcessIsRefusedAndTheSuccessorOfAKilledOneGetsTheBase) {
  SYNCOPATE_NEED_GPUS(1);
  const std::string where = Lend();
  const std::unique_ptr<Process> first = StartBorrower(where, "stays");
  ASSERT_NO_FATAL_FAILURE(ExpectMaps(*first));
  EXPECT_THAT(Borrow(where, manifest_.fingerprint(), 1), HasReason("ON_LOAN"));
  first->Kill();
  ASSERT_THAT(first->WaitExit(kDeadline), IsOk());
  BorrowOnceFree(where, kAnother);
  const std::unique_ptr<Process> successor = StartBorrower(where, "stays");
  ASSERT_NO_FATAL_FAILURE(ExpectMaps(*successor));
  EXPECT_THAT(Borrow(where, manifest_.fingerprint(), 1), HasReason("ON_LOAN"));
}

TEST_F(MappedBaseOnGpu, AProcessThatUnmapsTheBaseGivesTheLoanBack) {
  SYNCOPATE_NEED_GPUS(1);
  const std::string where = Lend();
  const std::unique_ptr<Process> borrower = StartBorrower(where, "returns");
  ASSERT_NO_FATAL_FAILURE(ExpectMaps(*borrower));
  ASSERT_THAT(borrower->WaitForLogLine("returned", kDeadline), IsOk());
  BorrowOnceFree(where, kAnother);
  EXPECT_TRUE(borrower->Running());
}

TEST_F(MappedBaseOnGpu, TheRangesHaveTheirOwnBaseOrTheLentOneOrAStandInOfZeros) {
  SYNCOPATE_NEED_GPUS(1);
  const int64_t base = manifest_.adapters_begin(), rest = manifest_.arena_bytes() - base;
  const std::string where = Lend();
  const auto borrow = [&] { return BorrowOnceFree(where, 1); };
  const auto memory = *CudaSharedBase::Create(RangesOf(manifest_));
  EXPECT_FALSE(memory->has_base());
  EXPECT_LT(memory->own_bytes(), base / 2 + kSets * rest) << "before it is received the base takes little memory";
  for (int32_t set = 0; set < kSets; ++set) {
    EXPECT_EQ(ToHost(0, memory->range(set), base + rest), std::vector<char>(static_cast<size_t>(base + rest), 0));
  }
  const char* const address = memory->range(1);

  LentMemory other = borrow();
  other.info.device = "GPU-of-another";
  EXPECT_THAT(memory->Map(std::move(other)), HasReason("BASE_UNMAPPABLE"));
  other = borrow();
  other.info.chunks.front() += Manifest::kMappingBytes;
  EXPECT_THAT(memory->Map(std::move(other)), HasReason("BASE_UNMAPPABLE"));

  for (int turn = 0; turn < 3; ++turn) {
    ASSERT_THAT(memory->Map(borrow()), IsOk());
    EXPECT_TRUE(memory->has_base());
    EXPECT_EQ(memory->mapped_bytes(), base);
    EXPECT_EQ(memory->own_bytes(), kSets * rest);
    EXPECT_THAT(Borrow(where, manifest_.fingerprint(), kAnother), HasReason("ON_LOAN"));
    EXPECT_EQ(DigestBase(manifest_, plan_, ToHost(0, memory->range(turn), base).data()),
              DigestBase(manifest_, plan_, Expected().data()));
    // A sleep that keeps the weights keeps the mapping; one that drops them, and a turn, give it back.
    ASSERT_THAT(memory->Release(/*keep_lent=*/true), IsOk());
    EXPECT_EQ(memory->own_bytes(), 0);
    EXPECT_EQ(memory->mapped_bytes(), base);
    ASSERT_THAT(memory->Restore(/*own_base=*/false), IsOk());
    EXPECT_EQ(ToHost(0, memory->range(0) + base, rest), std::vector<char>(static_cast<size_t>(rest), 0));
    ASSERT_THAT(memory->Release(/*keep_lent=*/false), IsOk());
    EXPECT_EQ(memory->mapped_bytes(), 0);
    BorrowOnceFree(where, kAnother);
    ASSERT_THAT(memory->Restore(/*own_base=*/false), IsOk());
    EXPECT_FALSE(memory->has_base());
  }
  ASSERT_THAT(memory->Own(), IsOk());
  EXPECT_EQ(memory->own_bytes(), base + kSets * rest);
  EXPECT_EQ(ToHost(0, memory->range(2), base), std::vector<char>(static_cast<size_t>(base), 0));
  ASSERT_EQ(cudaMemset(memory->range(2), 5, 256), cudaSuccess);
  EXPECT_EQ(ToHost(0, memory->range(0), 256), std::vector<char>(256, 5)) << "all ranges have one base";
  ASSERT_THAT(memory->Map(borrow()), IsOk());
  EXPECT_EQ(memory->own_bytes(), kSets * rest);
  EXPECT_EQ(memory->range(1), address) << "addresses never change";
}

TEST_F(MappedBaseOnGpu, HundredTurnsTakeNoMemory) {
  SYNCOPATE_NEED_GPUS(1);
  const std::string where = Lend();
  const auto memory = *CudaSharedBase::Create(RangesOf(manifest_));
  int64_t before = 0;
  for (int64_t step = 2; step < 102; ++step) {
    ASSERT_NO_FATAL_FAILURE(Stage(step));
    auto lent = Borrow(where, manifest_.fingerprint(), 1);
    ASSERT_THAT(lent, IsOk());
    ASSERT_THAT(memory->Map(*std::move(lent)), IsOk());
    ASSERT_THAT(memory->Release(/*keep_lent=*/false), IsOk());
    ASSERT_TRUE(arena_->LeaveDevice().value());
    ASSERT_THAT(memory->Restore(/*own_base=*/false), IsOk());
    if (step == 4) before = cuda::ReadGpuMemory(0)->free;
  }
  EXPECT_GE(cuda::ReadGpuMemory(0)->free, before);
}

}  // namespace
}  // namespace syncopate::synchronizer

int main(int count, char** args) {
  using syncopate::synchronizer::kBorrowFlag;
  if (count == 4 && std::string(args[1]) == kBorrowFlag) {
    const absl::Status ended = syncopate::synchronizer::MapAsBorrower(args[2], args[3]);
    std::printf("%s\n", ended.ToString().c_str());
    return 1;
  }
  ::testing::InitGoogleTest(&count, args);
  return RUN_ALL_TESTS();
}
