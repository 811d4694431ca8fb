#include "tools/report/live_page.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/host_port.h"
#include "tests/support/hand_clock.h"

namespace syncopate::report {
namespace {

using nlohmann::json;
using syncopate::testing::HandClock;
using ::testing::HasSubstr;

class LivePageTest : public ::testing::Test {
 protected:
  // The body of the answer to GET `path`.
  std::string Get(const std::string& path) {
    const std::string address = page_->url().substr(7, page_->url().size() - 8);  // the url is http://ADDRESS/
    const int client = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(ParseHostPort(address)->port));
    ::inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    EXPECT_EQ(::connect(client, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
    const std::string request = absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: ", address, "\r\n\r\n");
    EXPECT_EQ(::send(client, request.data(), request.size(), MSG_NOSIGNAL), static_cast<ssize_t>(request.size()));
    std::string answer;
    char buffer[4096];
    for (ssize_t size; (size = ::recv(client, buffer, sizeof(buffer), 0)) > 0;) {
      answer.append(buffer, static_cast<size_t>(size));
    }
    ::close(client);
    return answer.substr(answer.find("\r\n\r\n") + 4);
  }
  json News() { return json::parse(Get("/new.json"), nullptr, /*allow_exceptions=*/false); }
  void Step(int64_t step) {
    records::StepRecord record;
    record.step = step;
    page_->AddRecord(record);
  }

  HandClock clock_{absl::UnixEpoch() + absl::Seconds(1000)};
  std::unique_ptr<LivePage> page_ = LivePage::Start("0", &clock_).value();
};

TEST_F(LivePageTest, ThePageIsMadeOnceInAWhileAndWhatItLacksIsPolled) {
  Step(1);
  EXPECT_THAT(Get("/"), HasSubstr("\"last_step\":1,"));
  Step(2);
  EXPECT_THAT(Get("/"), HasSubstr("\"last_step\":1,"));
  EXPECT_EQ(News()["last_step"], 2);
  clock_.Advance(LivePage::kPageFor);
  EXPECT_THAT(Get("/"), HasSubstr("\"last_step\":2,"));
}

TEST_F(LivePageTest, WhoLooksIsToldWhyTheRunFailedBeforeThePageIsGone) {
  EXPECT_TRUE(page_->AwaitReaders(absl::Hours(1))) << "no browser reads the page";
  EXPECT_EQ(News()["status"], "");
  page_->SetEnd("failed", "trainer-0 exited with code 1", {"no room"}, json::parse(R"({"steps":7})"));
  EXPECT_FALSE(page_->AwaitReaders(absl::ZeroDuration()));
  const json news = News();
  EXPECT_EQ(news["status"], "failed");
  EXPECT_EQ(news["reason"], "trainer-0 exited with code 1");
  EXPECT_EQ(news["log"], json::array({"no room"}));
  EXPECT_EQ(news["summary"]["steps"], 7);
  EXPECT_TRUE(page_->AwaitReaders(absl::ZeroDuration()));
  page_->SetEnd("failed", "again", {}, json::object());
  clock_.Advance(absl::Minutes(1));
  EXPECT_TRUE(page_->AwaitReaders(absl::Hours(1))) << "a reader of a minute ago has gone";
}

TEST_F(LivePageTest, ShowsCheckpointsAsTheyAreNow) {
  page_->SetCheckpoints({.failed = 2, .error = "e1-s4: no space", .best = "e1-s3", .best_reward = 0.5});
  EXPECT_EQ(News()["checkpoints"],
            json::parse(R"({"failed":2,"error":"e1-s4: no space","best":"e1-s3","best_reward":0.5})"));
}

TEST_F(LivePageTest, SamplesOfTheRunDirectoryAreShownAndAHostileAnswerIsNoMarkup) {
  EXPECT_EQ(json::parse(Get("/samples.json"))["available"], false) << "no run directory yet";
  const std::string folder = absl::StrCat(::testing::TempDir(), "/live_page_samples");
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/samples.jsonl")
      << R"({"kind":"train","epoch":1,"step":1,"answer":"</script><img src=x onerror=alert(1)>"})"
      << "\n"
      << R"({"kind":"eval","epoch":1,"step":2,"answer":"good"})"
      << "\n";
  page_->SetRunDir(folder);
  const std::string body = Get("/samples.json?kind=train");
  EXPECT_EQ(body.find('<'), std::string::npos);
  EXPECT_EQ(json::parse(body)["samples"][0]["answer"], "</script><img src=x onerror=alert(1)>");
  EXPECT_EQ(json::parse(Get("/samples.json"))["samples"].size(), 2u);
  EXPECT_THAT(Get("/samples.json?reward_from=much"), HasSubstr("reward_from: it is no number"));
  EXPECT_THAT(Get("/samples.json?from=nowhere"), HasSubstr("from: it is no place"));
}

}  // namespace
}  // namespace syncopate::report
