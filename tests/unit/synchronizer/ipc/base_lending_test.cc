#include "synchronizer/ipc/base_lending.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

#include "base/status.h"

#include "synchronizer/ipc/rendezvous.h"
#include "synchronizer/transport/shared_base_memory.h"
#include "tests/support/eventually.h"
#include "tests/support/status_matchers.h"

namespace syncopate::synchronizer::ipc {
namespace {

using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;

constexpr int64_t kBase = 4096;
constexpr uint64_t kFingerprint = 5;
constexpr SharedBaseMemory::Sizes kSizes{.base = kBase, .range = kBase + 64};

class BaseLendingTest : public ::testing::Test {
 protected:
  static absl::StatusOr<LentMemory> Borrow(const std::string& rendezvous, uint64_t fingerprint = kFingerprint,
                                           const Borrower& borrower = {}) {
    return BorrowBase(rendezvous, fingerprint, borrower, Clock::Real()->Now() + absl::Seconds(20), {});
  }
  // Memory that passes for that of a GPU.
  SharedMemory MemoryOfGpu() {
    const SharedMemory host = *memory_.Lend();
    auto memory = std::make_shared<LentMemory>();
    memory->info = host->info;
    memory->info.device = "GPU-1";
    memory->handles.emplace_back(dup(host->handles.front().get()));
    return memory;
  }
  // The server's thread sees that a connection is gone in its own time.
  static absl::StatusOr<LentMemory> BorrowOnceFree(const std::string& where, const Borrower& borrower) {
    absl::StatusOr<LentMemory> lent;
    EXPECT_TRUE(testing::Eventually(absl::Seconds(20), [&] {
      lent = Borrow(where, kFingerprint, borrower);
      return ErrorReason(lent.status()) != "ON_LOAN";
    }));
    return lent;
  }

  SharedBaseMemory memory_{1, kSizes};
  std::unique_ptr<BaseLender> lender_ = *BaseLender::Create(kFingerprint);
};

TEST_F(BaseLendingTest, WhatIsBorrowedIsTheLendersMemory) {
  memory_.range(0)[17] = 3;
  const std::string where = lender_->Lend(*memory_.Lend());
  EXPECT_EQ(lender_->Lend(*memory_.Lend()), where) << "each sync asks where it is";
  SharedBaseMemory reader(2, kSizes, SharedBaseMemory::Base::kOnDemand);
  for (int turn = 0; turn < 3; ++turn) {
    auto lent = Borrow(where);
    ASSERT_THAT(lent, IsOk());
    EXPECT_EQ(lent->info, (*memory_.Lend())->info);
    ASSERT_THAT(reader.Map(*std::move(lent)), IsOk());
    EXPECT_EQ(reader.range(1)[17], 3);
  }
}

TEST_F(BaseLendingTest, AnotherModelsBaseIsNotLent) {
  const std::string where = lender_->Lend(*memory_.Lend());
  EXPECT_THAT(Borrow(where, kFingerprint + 1), HasReason("MODEL_MISMATCH"));
}

TEST_F(BaseLendingTest, ALenderOfAnotherHostIsNotAsked) {
  Rendezvous where = *Rendezvous::Parse(lender_->Lend(*memory_.Lend()));
  where.host = "another";
  EXPECT_THAT(Borrow(where.ToString()), HasReason("OTHER_HOST"));
  EXPECT_THAT(Borrow("nowhere"), HasReason("BAD_RENDEZVOUS"));
}

TEST_F(BaseLendingTest, ALenderThatIsGoneIsSaidToBe) {
  const std::string where = lender_->Lend(*memory_.Lend());
  lender_.reset();
  EXPECT_THAT(Borrow(where), HasReason("PEER_LOST"));
}

TEST_F(BaseLendingTest, HostMemoryIsLentToManyAtOnceAndMemoryOfAGpuToOneProcess) {
  const std::string host = lender_->Lend(*memory_.Lend());
  auto first = Borrow(host), second = Borrow(host);
  ASSERT_THAT(first, IsOk());
  EXPECT_THAT(second, IsOk());

  lender_ = *BaseLender::Create(kFingerprint);
  const std::string where = lender_->Lend(MemoryOfGpu());
  const Borrower one{"GPU-1", 1}, other{"GPU-1", 2};
  first = Borrow(where, kFingerprint, one);
  ASSERT_THAT(first, IsOk());
  EXPECT_THAT(Borrow(where, kFingerprint, other), HasReason("ON_LOAN"));
  auto again = Borrow(where, kFingerprint, one);
  EXPECT_THAT(again, IsOk()) << "the process that has it maps it anew";
  first = absl::UnknownError("given back");
  EXPECT_THAT(Borrow(where, kFingerprint, other), HasReason("ON_LOAN")) << "it maps it still";
  again = absl::UnknownError("given back");
  EXPECT_THAT(BorrowOnceFree(where, other), IsOk());
}

TEST_F(BaseLendingTest, TheLoanOfAProcessThatIsKilledGoesToItsSuccessor) {
  const std::string where = lender_->Lend(MemoryOfGpu());
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t borrower = fork();
  if (borrower == 0) {
    const auto lent = Borrow(where, kFingerprint, {"GPU-1", 1});
    const char told = lent.ok() ? 'y' : 'n';
    if (write(ready[1], &told, 1) != 1) _exit(1);
    for (;;) pause();
  }
  char told = 0;
  ASSERT_EQ(read(ready[0], &told, 1), 1);
  ASSERT_EQ(told, 'y');
  const Borrower successor{"GPU-1", 2};
  EXPECT_THAT(Borrow(where, kFingerprint, successor), HasReason("ON_LOAN"));
  ASSERT_EQ(kill(borrower, SIGKILL), 0);
  EXPECT_THAT(BorrowOnceFree(where, successor), IsOk());
  EXPECT_EQ(waitpid(borrower, nullptr, 0), borrower);
  close(ready[0]);
  close(ready[1]);
}

TEST_F(BaseLendingTest, ABaseOnAnotherDeviceIsRefusedBeforeItIsOnLoan) {
  const std::string where = lender_->Lend(MemoryOfGpu());
  EXPECT_THAT(Borrow(where), HasReason("OTHER_DEVICE")) << "for a process on the CPU";
  EXPECT_THAT(Borrow(where, kFingerprint, {"GPU-2", 3}), HasReason("OTHER_DEVICE"));
  EXPECT_THAT(Borrow(where, kFingerprint, {"GPU-1", 4}), IsOk());
}

// A process that was started again at the same path lends other memory than the rendezvous names.
TEST_F(BaseLendingTest, OtherMemoryThanWasNamedIsRefused) {
  Rendezvous where = *Rendezvous::Parse(lender_->Lend(*memory_.Lend()));
  ++where.memory;
  EXPECT_THAT(Borrow(where.ToString()), HasReason("BAD_MESSAGE"));
}

}  // namespace
}  // namespace syncopate::synchronizer::ipc
