// A saved state is that of one step, whatever a device does beside the copy.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/file_contents.h"
#include "tests/support/policy_copy.h"
#include "tests/support/small_model.h"
#include "tests/support/training_groups.h"
#include "trainer/checkpoint/policy_files.h"
#include "trainer/step/policy_trainer.h"

namespace syncopate::trainer {
namespace {

using testing::GetBytes;
using testing::Pointers;
using testing::PolicyCopy;

struct CopyCounts {
  int begun = 0, made = 0;
};

// A device that copies as late as it may: when a caller waits for the copy, or is about to write.
class LateArena final : public StateArena {
 public:
  LateArena(std::unique_ptr<StateArena> memory, CopyCounts* counts)
      : StateArena(memory->bytes(), Kind::kChanging), memory_(std::move(memory)), counts_(counts) {}
  ~LateArena() override { Make(pending_); }

  char* data() const override { return memory_->data(); }
  absl::Status FinishCopies() override {
    Make(pending_);
    return absl::OkStatus();
  }

 private:
  using Pending = std::shared_ptr<std::function<void()>>;
  static void Make(const Pending& pending) {
    if (pending != nullptr && *pending != nullptr) std::exchange(*pending, nullptr)();
  }

  absl::StatusOr<HostCopyWork> BeginCopyTo(char* host) override {
    ++counts_->begun;
    pending_ = std::make_shared<std::function<void()>>([this, host] {
      std::memcpy(host, data(), static_cast<size_t>(bytes()));
      ++counts_->made;
    });
    return HostCopyWork([pending = pending_] {
      Make(pending);
      return absl::OkStatus();
    });
  }
  absl::StatusOr<std::shared_ptr<char>> TakeHostMemory() const override {
    auto memory = std::make_shared<std::vector<char>>(static_cast<size_t>(bytes()));
    return std::shared_ptr<char>(memory, memory->data());
  }
  absl::Status CopyToHost(char*) override { return absl::UnimplementedError("it stays"); }
  absl::Status CopyFromHost(const char*) override { return absl::UnimplementedError("it stays"); }
  absl::Status Release() override { return absl::UnimplementedError("it stays"); }
  absl::Status Restore() override { return absl::UnimplementedError("it stays"); }

  const std::unique_ptr<StateArena> memory_;
  CopyCounts* const counts_;
  Pending pending_;  // the newest copy
};

std::unique_ptr<PolicyTrainer> MakePolicy(CopyCounts* counts) {
  PolicyTrainer::Options options;
  options.model = testing::GroupedQueryModel();
  options.seed = 3;
  options.arenas = [counts](int64_t bytes, StateArena::Kind kind,
                            const std::string& what) -> absl::StatusOr<std::unique_ptr<StateArena>> {
    SYNCOPATE_ASSIGN_OR_RETURN(auto memory, MakeHostStateArena(bytes, kind, what));
    return std::make_unique<LateArena>(std::move(memory), counts);
  };
  return PolicyTrainer::Create(options).value();
}

std::vector<TrajectoryGroup> Groups(uint64_t seed) {
  return testing::RandomGroups(testing::GroupedQueryModel().vocab_size, 3, 4, seed,
                               [](Trajectory& sample, const testing::Draw& draw) {
                                 sample.spans = {{{1, 0}, 0, static_cast<int32_t>(sample.tokens.size())}};
                                 sample.reward = 0.2f * static_cast<float>(draw(6));
                               });
}

TEST(SnapshotTest, HoldsTheStateOfItsStepWhileTheNextOneIsMade) {
  CopyCounts counts;
  const auto policy = MakePolicy(&counts);
  for (int64_t step = 0; step < 3; ++step) {
    const PolicyCopy before(*policy);
    counts = {};
    const auto snapshot = policy->TakeSnapshot("").value();
    EXPECT_EQ(counts.begun, 3);
    EXPECT_EQ(counts.made, 0) << "a step need not wait for the copy before it begins";
    const auto made = policy->Step(Pointers(Groups(static_cast<uint64_t>(step))), step);
    ASSERT_TRUE(made.ok()) << made.status();
    ASSERT_EQ(made->updates, 1);
    EXPECT_EQ(counts.made, 3) << "the update writes the memory that the copy reads";
    ASSERT_TRUE(snapshot->FinishCopy().ok());
    EXPECT_TRUE(before.IsHeldBy(*snapshot));
    EXPECT_FALSE(PolicyCopy(*policy).IsHeldBy(*snapshot));
  }
}

TEST(SnapshotTest, HoldsTheStateFromBeforeARestore) {
  CopyCounts counts;
  const auto policy = MakePolicy(&counts), other = MakePolicy(&counts);
  ASSERT_TRUE(other->Step(Pointers(Groups(1)), 0).ok());
  const PolicyCopy before(*policy), after(*other);
  const auto snapshot = policy->TakeSnapshot("").value();
  ASSERT_TRUE(policy->Restore(after).ok());
  ASSERT_TRUE(snapshot->FinishCopy().ok());
  EXPECT_TRUE(before.IsHeldBy(*snapshot));
}

TEST(SnapshotTest, IsWrittenWhenItsCopyIsWhole) {
  CopyCounts counts;
  const auto policy = MakePolicy(&counts);
  ASSERT_TRUE(policy->Step(Pointers(Groups(1)), 0).ok());
  const PolicyCopy before(*policy);
  auto files = PolicyFiles(policy->TakeSnapshot("").value());
  const std::string optimizer = GetBytes(files[OptimizerFileName(0, 1)]), model = GetBytes(files[ModelFileName(0, 1)]);
  const auto saved = SavedPolicy::Parse(policy->manifest(), {{model, optimizer}});
  ASSERT_TRUE(saved.ok()) << saved.status();
  const auto restored = MakePolicy(&counts);
  ASSERT_TRUE(restored->Restore(*saved).ok());
  EXPECT_TRUE(PolicyCopy(*restored) == before);
}

// The writing thread finds a device that does not answer, and gives the checkpoint up.
TEST(SnapshotTest, IsNotWrittenIfItsCopyFails) {
  CopyCounts counts;
  const auto policy = MakePolicy(&counts);
  PolicySnapshot snapshot = *policy->TakeSnapshot("").value();
  snapshot.under_way = {[] { return absl::DeadlineExceededError("the device does not answer"); }};
  auto files = PolicyFiles(std::make_shared<const PolicySnapshot>(std::move(snapshot)));
  for (const auto& [name, contents] : files) {
    const absl::Status written = std::get<1>(contents)([](absl::string_view) { return absl::OkStatus(); });
    EXPECT_TRUE(absl::IsDeadlineExceeded(written)) << name << ": " << written;
  }
}

}  // namespace
}  // namespace syncopate::trainer
