#include "trainer/memory/state_arena.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "tests/support/state_arena_conformance.h"

namespace syncopate::trainer {
namespace {

// On the CPU the machine is the device: the memory in use is what the kernel has given this process.
int64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

testing::ArenaRig HostRig() {
  return {.make = MakeHostStateArena,
          .write = [](char* data, const std::vector<char>& bytes) { std::memcpy(data, bytes.data(), bytes.size()); },
          .read = [](const char* data, int64_t bytes) { return std::vector<char>(data, data + bytes); },
          .taken = ResidentBytes};
}

TEST(HostStateArenaTest, KeepsItsAddressAndWhatItHeld) { testing::KeepsItsAddressAndWhatItHeld(HostRig()); }
TEST(HostStateArenaTest, GivesItsMemoryBackWhileItIsAway) { testing::GivesItsMemoryBackWhileItIsAway(HostRig()); }
TEST(HostStateArenaTest, MovesOnlyWhatItsKindNeeds) { testing::MovesOnlyWhatItsKindNeeds(HostRig()); }
TEST(HostStateArenaTest, HandsOutCopiesThatStay) { testing::HandsOutCopiesThatStay(HostRig()); }
TEST(HostStateArenaTest, LendsItsCopyWhileItIsAway) { testing::LendsItsCopyWhileItIsAway(HostRig()); }
TEST(HostStateArenaTest, ACopyHoldsWhatWasThereWhenItBegan) {
  testing::ACopyHoldsWhatWasThereWhenItBegan(HostRig(), 12 << 20);
}
TEST(HostStateArenaTest, APartsDurationsAreExact) { testing::APartsDurationsAreExact(HostRig()); }

TEST(HostStateArenaDeathTest, NobodyReadsWhatIsAway) {
  auto arena = MakeHostStateArena(1 << 20, StateArena::Kind::kChanging, "the weights").value();
  ASSERT_TRUE(arena->Offload().ok());
  EXPECT_DEATH({ EXPECT_EQ(*static_cast<volatile char*>(arena->data()), 0); }, "");
}

TEST(HostStateArenaTest, WhatTheMachineDoesNotHaveIsAnErrorThatNamesIt) {
  const auto arena = MakeHostStateArena(int64_t{1} << 60, StateArena::Kind::kChanging, "the first moment");
  EXPECT_EQ(ErrorReason(arena.status()), "OUT_OF_MEMORY");
  EXPECT_NE(arena.status().message().find("the first moment"), std::string::npos);
}

// An arena whose device has no memory left for a while.
class FullArena final : public StateArena {
 public:
  explicit FullArena(bool* full) : StateArena(8, Kind::kChanging), full_(full) {}
  char* data() const override { return nullptr; }

 private:
  absl::Status CopyToHost(char*) override { return absl::OkStatus(); }
  absl::Status CopyFromHost(const char*) override { return absl::OkStatus(); }
  absl::StatusOr<std::shared_ptr<char>> TakeHostMemory() const override { return std::shared_ptr<char>(); }
  absl::StatusOr<HostCopyWork> BeginCopyTo(char*) override { return HostCopyWork(); }
  absl::Status Release() override { return absl::OkStatus(); }
  absl::Status Restore() override { return *full_ ? absl::ResourceExhaustedError("full") : absl::OkStatus(); }
  bool* const full_;
};

TEST(StatePartTest, APartThatFoundNoRoomIsLoadedOnceThereIsSome) {
  bool full = false;
  FullArena a(&full), b(&full);
  StatePart part({&a, &b}, 0);
  ASSERT_TRUE(part.Offload().ok());
  full = true;
  EXPECT_TRUE(absl::IsResourceExhausted(part.Load()));
  EXPECT_FALSE(part.on_device());
  EXPECT_EQ(part.device_bytes(), 0);
  full = false;
  EXPECT_TRUE(part.Load().ok());
  EXPECT_EQ(part.device_bytes(), 16);
}

TEST(StatePartTest, MemoryThatStaysIsCountedAndNotMoved) {
  StatePart part({nullptr, nullptr}, 100);
  EXPECT_EQ(ErrorReason(part.Offload()), "NOT_MOVABLE");
  EXPECT_TRUE(part.on_device());
  EXPECT_TRUE(part.Load().ok());
  EXPECT_EQ(part.device_bytes(), 100);
  EXPECT_EQ(part.TakeMoves().offload_seconds, 0.0);
}

}  // namespace
}  // namespace syncopate::trainer
