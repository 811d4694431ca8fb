#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "trainer/memory/state_part.h"

// The tests that every StateArena must pass, whatever memory it uses. An implementation is a factory, functions that
// write and read its memory, and the number of device bytes that are really in use.
namespace syncopate::testing {

struct ArenaRig {
  trainer::StateArenaFactory make;
  std::function<void(char* data, const std::vector<char>& bytes)> write;
  std::function<std::vector<char>(const char* data, int64_t bytes)> read;
  // The bytes of the device that are in use now.
  std::function<int64_t()> taken;
};

inline std::vector<char> PatternFor(int64_t bytes, int seed) {
  std::vector<char> pattern(static_cast<size_t>(bytes));
  for (size_t i = 0; i < pattern.size(); ++i) pattern[i] = static_cast<char>(i * 31 + (i >> 9) + seed);
  return pattern;
}

inline void KeepsItsAddressAndWhatItHeld(const ArenaRig& rig) {
  constexpr int64_t kBytes = 12 << 20;
  auto arena = rig.make(kBytes, trainer::StateArena::Kind::kChanging, "the weights").value();
  char* const address = arena->data();
  EXPECT_EQ(rig.read(address, kBytes), std::vector<char>(kBytes, 0));
  for (int round = 0; round < 3; ++round) {
    const std::vector<char> pattern = PatternFor(kBytes, round);
    rig.write(address, pattern);
    EXPECT_EQ(arena->Offload().value_or(-1), kBytes);
    EXPECT_EQ(arena->device_bytes(), 0);
    EXPECT_EQ(arena->Load().value_or(-1), kBytes);
    EXPECT_EQ(arena->device_bytes(), kBytes);
    ASSERT_EQ(arena->data(), address);
    ASSERT_EQ(rig.read(address, kBytes), pattern);
  }
}

inline void GivesItsMemoryBackWhileItIsAway(const ArenaRig& rig) {
  constexpr int64_t kBytes = 256 << 20;
  auto arena = rig.make(kBytes, trainer::StateArena::Kind::kDerived, "the gradients").value();
  rig.write(arena->data(), PatternFor(kBytes, 1));
  const int64_t with = rig.taken();
  ASSERT_TRUE(arena->Offload().ok());
  EXPECT_LE(rig.taken(), with - kBytes / 10 * 9);
  ASSERT_TRUE(arena->Load().ok());
  EXPECT_EQ(rig.read(arena->data(), 1 << 20), std::vector<char>(1 << 20, 0));
}

// Makes a copy of the arena and waits until it is complete.
inline std::shared_ptr<const char> MakeWholeCopy(trainer::StateArena& arena) {
  const trainer::HostCopy copy = arena.BeginCopy().value();
  EXPECT_TRUE(copy.finish == nullptr || copy.finish().ok());
  return copy.bytes;
}

// `bytes`: for a device that copies beside its work, a number so large that a copy takes a while.
inline void ACopyHoldsWhatWasThereWhenItBegan(const ArenaRig& rig, int64_t bytes) {
  auto arena = rig.make(bytes, trainer::StateArena::Kind::kChanging, "the weights").value();
  const std::vector<char> first = PatternFor(bytes, 1), second = PatternFor(bytes, 2);
  auto holds = [](const trainer::HostCopy& copy, const std::vector<char>& pattern) {
    EXPECT_TRUE(copy.finish == nullptr || copy.finish().ok());
    return std::equal(pattern.begin(), pattern.end(), copy.bytes.get());
  };
  for (int round = 0; round < 3; ++round) {
    rig.write(arena->data(), first);
    const trainer::HostCopy written_after = arena->BeginCopy().value();
    ASSERT_TRUE(arena->FinishCopies().ok());
    rig.write(arena->data(), second);
    const trainer::HostCopy away_after = arena->BeginCopy().value();
    ASSERT_TRUE(arena->Offload().ok());
    EXPECT_TRUE(holds(written_after, first));
    EXPECT_TRUE(holds(away_after, second));
    ASSERT_TRUE(arena->Load().ok());
  }
  const trainer::HostCopy gone_after = arena->BeginCopy().value();
  arena = nullptr;
  EXPECT_TRUE(holds(gone_after, second));
}

inline void HandsOutCopiesThatStay(const ArenaRig& rig) {
  constexpr int64_t kBytes = 12 << 20;
  auto arena = rig.make(kBytes, trainer::StateArena::Kind::kChanging, "the weights").value();
  auto holds = [](const std::shared_ptr<const char>& copy, const std::vector<char>& bytes) {
    return std::equal(bytes.begin(), bytes.end(), copy.get());
  };
  const std::vector<char> first = PatternFor(kBytes, 1), second = PatternFor(kBytes, 2), third = PatternFor(kBytes, 3);
  rig.write(arena->data(), first);
  std::shared_ptr<const char> one = MakeWholeCopy(*arena);
  rig.write(arena->data(), second);
  std::shared_ptr<const char> two = MakeWholeCopy(*arena);
  EXPECT_TRUE(holds(one, first));
  EXPECT_TRUE(holds(two, second));
  // No reader has the newest version any more: its memory is used again, also if the arena was offloaded in between.
  const char* const place = two.get();
  two = nullptr;
  ASSERT_TRUE(arena->Offload().ok());
  ASSERT_TRUE(arena->Load().ok());
  rig.write(arena->data(), third);
  two = MakeWholeCopy(*arena);
  EXPECT_EQ(two.get(), place);
  EXPECT_TRUE(holds(two, third));
  EXPECT_TRUE(holds(one, first));
  arena = nullptr;
  EXPECT_TRUE(holds(two, third));
}

inline void LendsItsCopyWhileItIsAway(const ArenaRig& rig) {
  constexpr int64_t kBytes = 12 << 20;
  auto arena = rig.make(kBytes, trainer::StateArena::Kind::kChanging, "the weights").value();
  const std::vector<char> first = PatternFor(kBytes, 1), second = PatternFor(kBytes, 2);
  auto holds = [](const std::shared_ptr<const char>& copy, const std::vector<char>& bytes) {
    return std::equal(bytes.begin(), bytes.end(), copy.get());
  };
  rig.write(arena->data(), first);
  ASSERT_TRUE(arena->Offload().ok());
  std::shared_ptr<const char> lent = MakeWholeCopy(*arena);
  EXPECT_EQ(MakeWholeCopy(*arena), lent) << "there is one copy in host memory";
  EXPECT_FALSE(arena->on_device());
  EXPECT_TRUE(holds(lent, first));
  ASSERT_TRUE(arena->Load().ok());
  rig.write(arena->data(), second);
  ASSERT_TRUE(arena->Offload().ok());
  EXPECT_TRUE(holds(lent, first)) << "its reader is not done";
  lent = MakeWholeCopy(*arena);
  EXPECT_TRUE(holds(lent, second));
  // Without a reader the same memory is written again.
  const char* const place = lent.get();
  lent = nullptr;
  ASSERT_TRUE(arena->Load().ok());
  rig.write(arena->data(), first);
  ASSERT_TRUE(arena->Offload().ok());
  lent = MakeWholeCopy(*arena);
  EXPECT_EQ(lent.get(), place);
  EXPECT_TRUE(holds(lent, first));
}

inline void MovesOnlyWhatItsKindNeeds(const ArenaRig& rig) {
  constexpr int64_t kBytes = 2 << 20;
  using Kind = trainer::StateArena::Kind;
  auto frozen = rig.make(kBytes, Kind::kFrozen, "the reference policy").value();
  const std::vector<char> pattern = PatternFor(kBytes, 7);
  rig.write(frozen->data(), pattern);
  EXPECT_EQ(frozen->Offload().value_or(-1), kBytes);
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(frozen->Load().value_or(-1), kBytes);
    EXPECT_EQ(rig.read(frozen->data(), kBytes), pattern);
    EXPECT_EQ(frozen->Offload().value_or(-1), 0);  // the copy on the host is still valid
    EXPECT_EQ(frozen->Offload().value_or(-1), 0);
  }
  auto derived = rig.make(kBytes, Kind::kDerived, "the gradients").value();
  EXPECT_EQ(derived->Load().value_or(-1), 0);
  EXPECT_EQ(derived->Offload().value_or(-1), 0);
  EXPECT_EQ(derived->Load().value_or(-1), 0);
}

inline void APartsDurationsAreExact(const ArenaRig& rig) {
  constexpr int64_t kBytes = 4 << 20;
  auto a = rig.make(kBytes, trainer::StateArena::Kind::kChanging, "a").value();
  auto b = rig.make(kBytes, trainer::StateArena::Kind::kDerived, "b").value();
  int loaded = 0;
  trainer::StatePart part({a.get(), b.get()}, 0, {.after_load = [&loaded] { ++loaded; }});
  EXPECT_TRUE(part.Load().ok());
  EXPECT_EQ(part.TakeMoves().load_seconds, 0.0);  // the part was on the device already
  const absl::Time begin = absl::Now();
  EXPECT_TRUE(part.Offload().ok());
  EXPECT_TRUE(part.Offload().ok());
  const double wall = absl::ToDoubleSeconds(absl::Now() - begin);
  EXPECT_EQ(part.device_bytes(), 0);
  trainer::StateMoves moves = part.TakeMoves();
  EXPECT_GT(moves.offload_seconds, 0.0);
  EXPECT_LE(moves.offload_seconds, wall);
  EXPECT_EQ(moves.load_seconds, 0.0);
  EXPECT_EQ(moves.bytes, kBytes);
  EXPECT_TRUE(part.Load().ok());
  EXPECT_EQ(part.device_bytes(), 2 * kBytes);
  EXPECT_EQ(loaded, 1);
  moves = part.TakeMoves();
  EXPECT_GT(moves.load_seconds, 0.0);
  EXPECT_EQ(moves.offload_seconds, 0.0);
  EXPECT_EQ(moves.bytes, kBytes);
  moves = part.TakeMoves();
  EXPECT_EQ(moves.load_seconds + moves.offload_seconds, 0.0);
  EXPECT_EQ(moves.bytes, 0);
}

}  // namespace syncopate::testing
