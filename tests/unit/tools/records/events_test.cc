#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/event_log.h"
#include "base/event_recorder.h"
#include "services/wire/codec.h"
#include "tests/support/hand_clock.h"
#include "tests/support/process.h"
#include "tools/records/event_reader.h"
#include "tools/records/sync_trace.h"

namespace syncopate::records {
namespace {

using syncopate::testing::HandClock;
using ::testing::ElementsAre;
using ::testing::SizeIs;

std::vector<std::string> Kinds(const RunEvents& events) {
  std::vector<std::string> kinds;
  for (const v1::Event& event : events.events) kinds.push_back(event.role() + " " + event.kind());
  return kinds;
}

TEST(EventsTest, DaemonsEventsComeBackInTheOrderOfTime) {
  testing::TempDir dir;
  HandClock clock;
  auto trainer = EventRecorder::Open(FileSystem::Real(), dir.path(), "trainer-0", wire::EncodeEvent, &clock).value();
  auto rollouter =
      EventRecorder::Open(FileSystem::Real(), dir.path(), "rollouter-1", wire::EncodeEvent, &clock).value();
  clock.Set(absl::FromUnixSeconds(2));
  rollouter->Record({"install", {1, 5}, 0, {{"pause_seconds", "0.001"}}});
  clock.Set(absl::FromUnixSeconds(1));
  trainer->Record({"publish", {1, 5}});
  clock.Set(absl::FromUnixSeconds(3));
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
    auto recorder = EventRecorder::Open(FileSystem::Real(), dir.path(), "trainer-0", wire::EncodeEvent).value();
    recorder->Record({"step", {1, 1}});
    recorder->Record({"step", {1, 2}});
  }
  const std::string path = EventLogPath(dir.path(), "trainer-0");
  {
    auto file = FileSystem::Real()->OpenForAppend(path, FileSystem::OpenMode::kOpenOrCreate).value();
    ASSERT_TRUE(file->Truncate(file->size() - 3).ok());
  }
  RunEvents torn = ReadRunEvents(FileSystem::Real(), dir.path()).value();
  EXPECT_THAT(torn.events, SizeIs(1));
  EXPECT_THAT(torn.warnings, SizeIs(1));
  {
    auto recorder = EventRecorder::Open(FileSystem::Real(), dir.path(), "trainer-0", wire::EncodeEvent).value();
    recorder->Record({"step", {2, 2}});
  }
  EXPECT_THAT(ReadRunEvents(FileSystem::Real(), dir.path())->events, SizeIs(2));
}

TEST(EventsTest, ADirectoryWithoutEventsIsSaid) {
  testing::TempDir dir;
  EXPECT_EQ(ErrorReason(ReadRunEvents(FileSystem::Real(), dir.path()).status()), "NO_EVENTS");
}

// An event as a daemon would have written it at `unix_seconds`.
v1::Event Left(double unix_seconds, const std::string& daemon, const std::string& kind, int64_t attempt,
               const std::map<std::string, std::string>& fields) {
  v1::Event event;
  event.set_unix_seconds(unix_seconds);
  event.set_role(daemon);
  event.set_kind(kind);
  event.set_attempt(attempt);
  event.mutable_version()->set_epoch(1);
  event.mutable_version()->set_step(attempt);
  event.mutable_fields()->insert(fields.begin(), fields.end());
  return event;
}

std::vector<v1::Event> TwoSyncs() {
  std::vector<v1::Event> events;
  for (int64_t attempt : {7, 8}) {
    const double end = 100.0 * static_cast<double>(attempt) + 1.0;
    events.push_back(Left(end - 0.9, "trainer-0", "publish", 0, {{"stage_seconds", "0.1"}}));
    events.back().mutable_version()->set_step(attempt);
    events.push_back(Left(end - 0.8, "rollouter-1", "phase", attempt, {{"phase", "prepare"}, {"seconds", "0.05"}}));
    events.push_back(Left(end - 0.1, "rollouter-1", "phase", attempt,
                          {{"phase", "transfer"},
                           {"seconds", "0.6"},
                           {"connect_seconds", "0.2"},
                           {"verify_seconds", "0.1"},
                           {"bytes", "1000"}}));
    events.push_back(Left(end, "synchronizer-0", "sync", attempt,
                          {{"replica", "rollouter-1"},
                           {"result", attempt == 7 ? "ok" : "PEER_LOST"},
                           {"stage_seconds", "0.1"},
                           {"prepare_seconds", "0.25"},
                           {"transfer_seconds", "0.4"},
                           {"verify_seconds", "0"},
                           {"install_seconds", "0.15"}}));
  }
  return events;
}

TEST(SyncTraceTest, HasATrackAProcessAndASpanAPhaseThatRan) {
  auto trace = nlohmann::json::parse(SyncTrace(TwoSyncs(), 7).value());
  std::map<int, std::string> processes;
  std::map<std::string, std::pair<double, double>> spans;  // key: process/name; value: begin and length in milliseconds
  for (const auto& event : trace["traceEvents"]) {
    if (event["name"] == "process_name") processes[event["pid"]] = event["args"]["name"];
    if (event["ph"] != "X") continue;
    const std::string name = processes.at(event["pid"]) + "/" + std::string(event["name"]);
    spans[name] = {event["ts"].get<double>() / 1000, event["dur"].get<double>() / 1000};
  }
  std::map<std::string, std::pair<double, double>> expected = {
      {"trainer-0/stage", {0, 100}},          {"rollouter-1/prepare", {150, 50}},
      {"rollouter-1/connect", {300, 200}},    {"rollouter-1/transfer", {500, 300}},
      {"rollouter-1/verify", {800, 100}},     {"synchronizer-0/stage", {100, 100}},
      {"synchronizer-0/prepare", {200, 250}}, {"synchronizer-0/transfer", {450, 400}},
      {"synchronizer-0/install", {850, 150}}};
  ASSERT_EQ(spans.size(), expected.size());
  for (const auto& [name, span] : expected) {
    EXPECT_NEAR(spans[name].first, span.first, 0.01) << name;
    EXPECT_NEAR(spans[name].second, span.second, 0.01) << name;
  }
}

TEST(SyncTraceTest, WithoutAnAttemptTheLastGoodOneIsShown) {
  EXPECT_EQ(SyncTrace(TwoSyncs(), std::nullopt).value(), SyncTrace(TwoSyncs(), 7).value());
  EXPECT_NE(SyncTrace(TwoSyncs(), 8).value(), SyncTrace(TwoSyncs(), 7).value());
  EXPECT_EQ(ErrorReason(SyncTrace(TwoSyncs(), 9).status()), "NO_SYNC");
  EXPECT_EQ(ErrorReason(SyncTrace({}, std::nullopt).status()), "NO_SYNC");
}

}  // namespace
}  // namespace syncopate::records
