#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/event_log.h"
#include "services/events/event_reader.h"
#include "services/events/event_recorder.h"
#include "tests/support/process.h"

namespace syncopate::services {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

// A clock that the test sets.
class HandClock final : public Clock {
 public:
  absl::Time Now() const override { return absl::UnixEpoch() + absl::Seconds(unix_seconds); }
  double UnixSeconds() const override { return unix_seconds; }
  double unix_seconds = 0;
};

std::vector<std::string> Kinds(const RunEvents& events) {
  std::vector<std::string> kinds;
  for (const v1::Event& event : events.events) kinds.push_back(event.role() + " " + event.kind());
  return kinds;
}

TEST(EventsTest, DaemonsEventsComeBackInTheOrderOfTime) {
  testing::TempDir dir;
  HandClock clock;
  auto trainer = EventRecorder::Open(FileSystem::Real(), dir.path(), "trainer", 0, &clock).value();
  auto rollouter = EventRecorder::Open(FileSystem::Real(), dir.path(), "rollouter", 1, &clock).value();
  clock.unix_seconds = 2;
  rollouter->Record({"install", {1, 5}, 0, {{"pause_seconds", "0.001"}}});
  clock.unix_seconds = 1;
  trainer->Record({"publish", {1, 5}});
  clock.unix_seconds = 3;
  trainer->Record({"step", {1, 6}});
  ASSERT_TRUE(trainer->Stop().ok());
  ASSERT_TRUE(rollouter->Stop().ok());
  const RunEvents events = ReadRunEvents(FileSystem::Real(), dir.path()).value();
  EXPECT_THAT(Kinds(events), ElementsAre("trainer-0 publish", "rollouter-1 install", "trainer-0 step"));
  EXPECT_THAT(events.warnings, SizeIs(0));
  const nlohmann::json install = nlohmann::json::parse(ToJson(events.events[1]));
  EXPECT_EQ(install["version"], "e1-s5");
  EXPECT_EQ(install["pause_seconds"], "0.001");
  EXPECT_EQ(install["daemon"], "rollouter-1");
}

TEST(EventsTest, AnotherLifeAppendsAndATornEndIsCutOffAndSaid) {
  testing::TempDir dir;
  {
    auto recorder = EventRecorder::Open(FileSystem::Real(), dir.path(), "trainer", 0).value();
    recorder->Record({"step", {1, 1}});
    recorder->Record({"step", {1, 2}});
  }
  const std::string path = EventLogPath(dir.path(), "trainer", 0);
  {
    auto file = FileSystem::Real()->OpenForAppend(path, FileSystem::OpenMode::kOpenOrCreate).value();
    ASSERT_TRUE(file->Truncate(file->size() - 3).ok());
  }
  RunEvents torn = ReadRunEvents(FileSystem::Real(), dir.path()).value();
  EXPECT_THAT(torn.events, SizeIs(1));
  EXPECT_THAT(torn.warnings, SizeIs(1));
  {
    auto recorder = EventRecorder::Open(FileSystem::Real(), dir.path(), "trainer", 0).value();
    recorder->Record({"step", {2, 2}});
  }
  EXPECT_THAT(ReadRunEvents(FileSystem::Real(), dir.path())->events, SizeIs(2));
}

TEST(EventsTest, ADirectoryWithoutEventsIsSaid) {
  testing::TempDir dir;
  EXPECT_EQ(ErrorReason(ReadRunEvents(FileSystem::Real(), dir.path()).status()), "NO_EVENTS");
}

}  // namespace
}  // namespace syncopate::services
