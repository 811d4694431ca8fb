#include "services/rollouter/spread_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/rollouter/play_client.h"
#include "tests/support/notification.h"

namespace syncopate::rollouterd {
namespace {

using rollouter::EnvironmentMessage;
using rollouter::RemoteEnvironment;
using rollouter::RemoteEpisode;
using ::testing::ElementsAre;
using Said = absl::StatusOr<EnvironmentMessage>;

// A worker's end that notes what it is asked and answers when the test does. For one thread.
class FakePlay final : public RemoteEnvironment {
 public:
  absl::Status Availability(const std::string& environment) const override {
    if (!there.ok()) return there;
    return environment == "game" ? absl::OkStatus() : absl::NotFoundError("no such environment");
  }
  void Open(RemoteEpisode episode, Done done) override { Ask("open " + episode.id, episode.id, std::move(done)); }
  void Act(const std::string& episode, rollouter::RemoteAction action, Done done) override {
    Ask(absl::StrCat("act ", episode, " ", action.turn), episode, std::move(done));
  }
  void Close(const std::string& episode, const std::string&) override {
    asked.push_back("close " + episode);
    calls_.erase(episode);
  }
  void SetAvailabilityListener(std::function<void()> changed) override { changed_ = std::move(changed); }
  Counters counters() const override { return {.opened = opened_}; }

  void Answer(const std::string& episode, Said said) { calls_.extract(episode).mapped()(std::move(said)); }
  void Change(const absl::Status& status) {
    there = status;
    changed_();
  }

  absl::Status there;
  std::vector<std::string> asked;

 private:
  void Ask(const std::string& what, const std::string& episode, Done done) {
    if (what == "open " + episode) ++opened_;
    asked.push_back(what);
    calls_[episode] = std::move(done);
  }

  std::map<std::string, Done> calls_;
  std::function<void()> changed_;
  int64_t opened_ = 0;
};

class SpreadEnvironmentTest : public ::testing::Test {
 protected:
  SpreadEnvironmentTest() {
    spread_ = SpreadEnvironment::Start({.connect =
                                            [this] {
                                              auto play = std::make_shared<FakePlay>();
                                              plays_.push_back(play);
                                              const size_t number = plays_.size();
                                              return SpreadEnvironment::Connection{
                                                  .play = play, .stop = [this, number] { stopped_.Put(number); }};
                                            },
                                        .renew_every = absl::InfiniteDuration()});
  }
  ~SpreadEnvironmentTest() override { spread_->Stop(); }

  void Open(const std::string& id) {
    RemoteEpisode episode;
    episode.id = id;
    episode.environment = "game";
    spread_->Open(std::move(episode), [this](const Said& said) { said_.push_back(said.ok() ? said->text : "error"); });
  }
  void Act(const std::string& id, int32_t turn) {
    spread_->Act(id, {.turn = turn}, [this](const Said& said) { said_.push_back(said.ok() ? said->text : "error"); });
  }

  std::vector<std::shared_ptr<FakePlay>> plays_;  // by connection
  std::vector<std::string> said_;
  Mailbox<size_t> stopped_;  // numbers of connections, from 1 on
  std::shared_ptr<SpreadEnvironment> spread_;
};

TEST_F(SpreadEnvironmentTest, WhatOpensGoesToTheNewestConnectionAndEpisodesStayWhereTheyAre) {
  Open("a");
  spread_->Renew();  // begins the second
  Open("b");
  EXPECT_THAT(plays_[0]->asked, ElementsAre("open a", "open b")) << "the second has not taken over yet";
  spread_->Renew();
  Open("c");
  Act("a", 1);
  plays_[0]->Answer("a", EnvironmentMessage{.text = "from the first"});
  EXPECT_THAT(plays_[0]->asked, ElementsAre("open a", "open b", "act a 1"));
  EXPECT_THAT(plays_[1]->asked, ElementsAre("open c"));
  EXPECT_THAT(said_, ElementsAre("from the first"));
}

TEST_F(SpreadEnvironmentTest, AConnectionThatIsNotThereTakesNothingOver) {
  spread_->Renew();
  plays_[1]->there = absl::FailedPreconditionError("a worker of other code");
  spread_->Renew();
  ASSERT_TRUE(stopped_.WaitFor(1));
  EXPECT_THAT(stopped_.All(), ElementsAre(2u));
  Open("a");
  EXPECT_THAT(plays_[0]->asked, ElementsAre("open a"));
  spread_->Renew();  // the third is there
  Open("b");
  EXPECT_THAT(plays_[2]->asked, ElementsAre("open b"));
}

TEST_F(SpreadEnvironmentTest, AnOlderConnectionEndsOnceAllItsEpisodesAreOver) {
  for (const char* id : {"ends", "fails", "closed"}) Open(id);
  for (int i = 0; i < 4; ++i) spread_->Renew();
  EXPECT_THAT(stopped_.All(), ::testing::Not(::testing::Contains(1u)));
  plays_[0]->Answer("ends", EnvironmentMessage{.done = true});
  plays_[0]->Answer("fails", absl::InternalError("its worker died"));
  spread_->Renew();
  spread_->Renew();
  EXPECT_THAT(stopped_.All(), ::testing::Not(::testing::Contains(1u))) << "one is open";
  spread_->Close("closed", "nobody wants it");
  EXPECT_EQ(plays_[0]->asked.back(), "close closed");
  spread_->Renew();
  EXPECT_THAT(stopped_.All(), ::testing::Not(::testing::Contains(1u))) << "its worker answers the cancel first";
  spread_->Renew();
  const size_t ended = plays_.size() - 3;  // all but the newest, the one before it, and the one that was begun last
  ASSERT_TRUE(stopped_.WaitFor(ended));
  EXPECT_THAT(stopped_.All(), ::testing::Contains(1u));
  EXPECT_EQ(spread_->counters().opened, 3) << "what ended is counted";
}

TEST_F(SpreadEnvironmentTest, ItIsThereWhileTheNewestConnectionIsAndSaysWhenThatChanges) {
  int changes = 0;
  spread_->SetAvailabilityListener([&changes] { ++changes; });
  EXPECT_TRUE(spread_->Availability("game").ok());
  EXPECT_TRUE(absl::IsNotFound(spread_->Availability("other")));
  plays_[0]->Change(absl::UnavailableError("gone"));
  EXPECT_EQ(changes, 1);
  EXPECT_TRUE(absl::IsUnavailable(spread_->Availability("game")));
  spread_->Renew();
  spread_->Renew();
  EXPECT_GT(changes, 1);
  EXPECT_TRUE(spread_->Availability("game").ok()) << "another worker has taken over";
}

}  // namespace
}  // namespace syncopate::rollouterd
