#include "synchronizer/ipc/base_lending.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <stop_token>
#include <string>
#include <utility>

#include "synchronizer/ipc/rendezvous.h"
#include "synchronizer/transport/shared_base_memory.h"
#include "tests/support/status_matchers.h"

namespace syncopate::synchronizer::ipc {
namespace {

using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;

constexpr int64_t kBase = 4096;
constexpr uint64_t kFingerprint = 5;
constexpr SharedBaseMemory::Sizes kSizes{.base = kBase, .range = kBase + 64, .shared = kBase};

class BaseLendingTest : public ::testing::Test {
 protected:
  static absl::StatusOr<LentMemory> Borrow(const std::string& rendezvous, uint64_t fingerprint = kFingerprint,
                                           const std::stop_token& stop = {}) {
    return BorrowBase(rendezvous, fingerprint, Clock::Real()->Now() + absl::Seconds(20), stop);
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

// A process that was started again at the same path lends other memory than the rendezvous names.
TEST_F(BaseLendingTest, OtherMemoryThanWasNamedIsRefused) {
  Rendezvous where = *Rendezvous::Parse(lender_->Lend(*memory_.Lend()));
  ++where.memory;
  EXPECT_THAT(Borrow(where.ToString()), HasReason("BAD_MESSAGE"));
}

}  // namespace
}  // namespace syncopate::synchronizer::ipc
