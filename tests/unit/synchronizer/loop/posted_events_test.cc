#include "synchronizer/loop/posted_events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "synchronizer/loop/control_plane.h"

namespace syncopate::synchronizer {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Kind = PostedEvents::Kind;

class PostedEventsTest : public ::testing::Test {
 protected:
  bool Post(const std::string& name, SessionId session = 0, Kind kind = Kind::kOther) {
    return events_.Add({Event(name), nullptr, session, kind});
  }
  bool Call(const std::string& name) {
    return events_.Add({Event(name), [this, name](const absl::Status&) { answered_.push_back(name); }});
  }
  PostedEvents::Event Event(const std::string& name) {
    return [this, name](ControlPlane&, absl::Time) { handled_.push_back(name); };
  }
  // Handles the waiting events; returns their names, in order.
  std::vector<std::string> Handle() {
    handled_.clear();
    for (const PostedEvents::Posted& one : events_.Take()) one.event(plane_, absl::UnixEpoch());
    return handled_;
  }

  static ControlPlane MakePlane() {
    ControlPlane::Options options;
    options.run_id = "run";
    return ControlPlane::Restore(options, {}).value();
  }

  ControlPlane plane_ = MakePlane();
  PostedEvents events_;
  std::vector<std::string> handled_, answered_;
};

TEST_F(PostedEventsTest, KeepsTheOrderOfAllThatIsPosted) {
  EXPECT_TRUE(Post("hello", 1, Kind::kHello));
  EXPECT_TRUE(Post("beat", 1, Kind::kHeartbeat));
  EXPECT_TRUE(Call("call"));
  EXPECT_TRUE(Post("beat again", 1, Kind::kHeartbeat));
  EXPECT_TRUE(Post("end", 1, Kind::kEnd));
  EXPECT_THAT(Handle(), ElementsAre("hello", "beat", "call", "beat again", "end"));
  EXPECT_TRUE(events_.empty());
}

TEST_F(PostedEventsTest, HeldUpItTakesNoCallsAndHandsOutThoseThatWait) {
  Post("first");
  Call("asked before");
  std::list<PostedEvents::Posted> rest = events_.Take();
  Post("second");
  Call("asked since");
  for (const PostedEvents::Answer& call : events_.Block(std::move(rest))) call(absl::UnavailableError("full"));
  EXPECT_THAT(answered_, ElementsAre("asked before", "asked since"));
  EXPECT_FALSE(Call("asked while it is held up"));
  EXPECT_TRUE(Post("third"));
  events_.Unblock();
  EXPECT_TRUE(Call("asked after"));
  EXPECT_THAT(Handle(), ElementsAre("first", "second", "third", "asked after"));
}

TEST_F(PostedEventsTest, HeldUpItKeepsTheNewestHeartbeatOfEachStreamBehindWhatCameBeforeIt) {
  Post("beat 1 of a", 1, Kind::kHeartbeat);
  events_.Block({});
  Post("beat 1 of b", 2, Kind::kHeartbeat);
  Post("report of a", 1, Kind::kMessage);
  for (const char* beat : {"beat 2 of a", "beat 3 of a"}) Post(beat, 1, Kind::kHeartbeat);
  Post("report of b", 2, Kind::kMessage);
  events_.Unblock();
  EXPECT_THAT(Handle(), ElementsAre("beat 1 of b", "report of a", "beat 3 of a", "report of b"));
}

TEST_F(PostedEventsTest, HeldUpItForgetsStreamsThatEndBeforeTheirHelloWasHandledAndNoOthers) {
  events_.Block({});
  for (SessionId session = 10; session < 1000; ++session) {
    Post("hello", session, Kind::kHello);
    Post("beat", session, Kind::kHeartbeat);
    Post("report", session, Kind::kMessage);
    Post("end", session, Kind::kEnd);
  }
  Post("report of a member", 1, Kind::kMessage);
  Post("end of a member", 1, Kind::kEnd);
  Post("beat", 999, Kind::kHeartbeat);  // an event of a stream that the loop has forgotten
  Post("hello of the next", 2, Kind::kHello);
  events_.Unblock();
  EXPECT_THAT(Handle(), ElementsAre("report of a member", "end of a member", "beat", "hello of the next"));
}

TEST_F(PostedEventsTest, AfterTheWaitEveryHeartbeatCountsAgain) {
  events_.Block({});
  Post("beat 1", 1, Kind::kHeartbeat);
  events_.Unblock();
  Post("beat 2", 1, Kind::kHeartbeat);
  EXPECT_THAT(Handle(), ElementsAre("beat 1", "beat 2"));
  EXPECT_THAT(Handle(), IsEmpty());
}

}  // namespace
}  // namespace syncopate::synchronizer
