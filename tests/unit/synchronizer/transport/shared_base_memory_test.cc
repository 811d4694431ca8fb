#include "synchronizer/transport/shared_base_memory.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "tests/support/status_matchers.h"

namespace syncopate::synchronizer {
namespace {

using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;

constexpr int64_t kPage = 4096;
constexpr int64_t kBase = 2 * kPage;
constexpr int64_t kRange = kBase + 100;
constexpr SharedBaseMemory::Sizes kSizes{.base = kBase, .range = kRange};

// Memory as it arrives in another process: with descriptors of its own.
LentMemory Receive(const SharedMemory& lent) {
  LentMemory received{lent->info, {}};
  for (const FileDescriptor& handle : lent->handles) received.handles.emplace_back(dup(handle.get()));
  return received;
}

class SharedBaseMemoryTest : public ::testing::Test {
 protected:
  SharedBaseMemoryTest() { std::memset(lender_->range(0), 7, kBase); }

  std::unique_ptr<SharedBaseMemory> lender_ = std::make_unique<SharedBaseMemory>(2, kSizes);
  SharedBaseMemory borrower_{3, kSizes, SharedBaseMemory::Base::kOnDemand};
};

TEST_F(SharedBaseMemoryTest, AllRangesHaveOneBaseAndEachARestOfItsOwn) {
  EXPECT_EQ(lender_->range(1)[kBase - 1], 7);
  lender_->range(0)[kBase] = 1;
  EXPECT_EQ(lender_->range(1)[kBase], 0);
  EXPECT_EQ(lender_->own_bytes(), kBase + 2 * 100);
  EXPECT_EQ(borrower_.own_bytes(), 3 * 100) << "its base takes memory on demand alone";
}

TEST_F(SharedBaseMemoryTest, ALentBaseIsReadInPlaceOfMemoryOfItsOwn) {
  ASSERT_THAT(borrower_.Map(Receive(*lender_->Lend())), IsOk());
  for (int32_t i = 0; i < 3; ++i) EXPECT_EQ(borrower_.range(i)[kBase - 1], 7) << i;
  EXPECT_EQ(borrower_.mapped_bytes(), kBase);
  EXPECT_EQ(borrower_.own_bytes(), 3 * 100);
  borrower_.range(2)[kBase] = 5;
  EXPECT_EQ(borrower_.range(0)[kBase], 0);
}

TEST_F(SharedBaseMemoryTest, ALentBaseOutlivesItsLender) {
  ASSERT_THAT(borrower_.Map(Receive(*lender_->Lend())), IsOk());
  lender_.reset();
  EXPECT_EQ(borrower_.range(0)[0], 7);
}

TEST_F(SharedBaseMemoryTest, NobodyCanWriteToALentBaseNorShrinkIt) {
  const auto lent = lender_->Lend();
  ASSERT_THAT(lent, IsOk());
  const int handle = (*lent)->handles.front().get();
  EXPECT_EQ(mmap(nullptr, kBase, PROT_READ | PROT_WRITE, MAP_SHARED, handle, 0), MAP_FAILED);
  EXPECT_EQ(pwrite(handle, "x", 1, 0), -1);
  EXPECT_EQ(ftruncate(handle, kPage), -1);
  ASSERT_THAT(borrower_.Map(Receive(*lent)), IsOk());
  EXPECT_EQ(mprotect(borrower_.range(0), kBase, PROT_READ | PROT_WRITE), -1) << "not even on purpose";
  EXPECT_DEATH(lender_->range(1)[0] = 8, "") << "its owner neither";
  EXPECT_DEATH(borrower_.range(1)[0] = 8, "");
}

TEST_F(SharedBaseMemoryTest, MemoryThatCouldChangeOrIsOfAnotherSizeIsRefusedAndChangesNothing) {
  ASSERT_THAT(borrower_.Own(), IsOk());
  borrower_.range(0)[0] = 3;
  const FileDescriptor unsealed(memfd_create("unsealed", MFD_CLOEXEC));
  const FileDescriptor file(open(::testing::TempDir().c_str(), O_TMPFILE | O_RDWR, 0600));
  for (const FileDescriptor* changeable : {&unsealed, &file}) {
    ASSERT_EQ(ftruncate(changeable->get(), kBase), 0);
    LentMemory memory{.info = {.id = 1, .device = "", .chunks = {kBase}}, .handles = {}};
    memory.handles.emplace_back(dup(changeable->get()));
    EXPECT_THAT(borrower_.Map(std::move(memory)), HasReason("BASE_UNMAPPABLE"));
  }
  LentMemory small = Receive(*lender_->Lend());
  small.info.chunks = {kPage};
  EXPECT_THAT(borrower_.Map(std::move(small)), HasReason("BASE_UNMAPPABLE"));
  LentMemory gpu = Receive(*lender_->Lend());
  gpu.info.device = "GPU-1";
  EXPECT_THAT(borrower_.Map(std::move(gpu)), HasReason("BASE_UNMAPPABLE"));
  EXPECT_EQ(borrower_.range(2)[0], 3);
  EXPECT_EQ(borrower_.own_bytes(), kBase + 3 * 100);
}

TEST_F(SharedBaseMemoryTest, WhatIsReleasedTakesNoMemoryAndALentBaseIsMappedAgain) {
  const auto lent = lender_->Lend();
  for (int turn = 0; turn < 3; ++turn) {
    ASSERT_THAT(borrower_.Map(Receive(*lent)), IsOk());
    borrower_.range(0)[kBase] = 5;
    ASSERT_THAT(borrower_.Release(std::nullopt), IsOk());
    EXPECT_EQ(borrower_.mapped_bytes(), 0);
    EXPECT_EQ(borrower_.own_bytes(), 0);
    ASSERT_THAT(borrower_.Restore(), IsOk());
    EXPECT_EQ(borrower_.range(0)[0], 0) << "the lent base is gone from here";
    EXPECT_EQ(borrower_.range(0)[kBase], 0);
    EXPECT_EQ(borrower_.own_bytes(), 3 * 100) << "no memory waits for a base that will be mapped";
  }
  EXPECT_EQ(lender_->range(0)[0], 7);
}

TEST_F(SharedBaseMemoryTest, ALightReleaseKeepsALentBase) {
  ASSERT_THAT(borrower_.Map(Receive(*lender_->Lend())), IsOk());
  borrower_.range(1)[kBase] = 5;
  ASSERT_THAT(borrower_.Release(1), IsOk());
  ASSERT_THAT(borrower_.Restore(), IsOk());
  EXPECT_EQ(borrower_.range(1)[0], 7);
  EXPECT_EQ(borrower_.range(1)[kBase], 5);
}

TEST_F(SharedBaseMemoryTest, ABaseOfItsOwnCanBeWrittenAfterALentOne) {
  ASSERT_THAT(borrower_.Map(Receive(*lender_->Lend())), IsOk());
  ASSERT_THAT(borrower_.Own(), IsOk());
  EXPECT_EQ(borrower_.mapped_bytes(), 0);
  borrower_.range(0)[0] = 9;
  EXPECT_EQ(borrower_.range(2)[0], 9);
  EXPECT_EQ(lender_->range(0)[0], 7);
  ASSERT_THAT(borrower_.Map(Receive(*lender_->Lend())), IsOk());
  EXPECT_EQ(borrower_.range(0)[0], 7);
}

}  // namespace
}  // namespace syncopate::synchronizer
