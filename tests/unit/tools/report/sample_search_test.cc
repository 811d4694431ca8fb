#include "tools/report/sample_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/status_matchers.h"

namespace syncopate::report {
namespace {

using nlohmann::json;
using syncopate::testing::HasReason;
using syncopate::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Moves on by a step with each look at it, as time does for who works.
class TickingClock final : public Clock {
 public:
  explicit TickingClock(absl::Duration step) : step_(step) {}
  absl::Time Now() const override { return now_ += step_; }
  double UnixSeconds() const override { return 0; }

 private:
  const absl::Duration step_;
  mutable absl::Time now_ = absl::UnixEpoch();
};

class SampleSearchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = absl::StrCat(::testing::TempDir(), "/sample_search_", test->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  static std::string Line(int64_t step, const json& more = json::object()) {
    nlohmann::ordered_json line = {{"kind", "train"}, {"epoch", 1}, {"step", step}};
    line.update(nlohmann::ordered_json::parse(more.dump()));
    return line.dump() + "\n";
  }
  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ + "/" + name, std::ios::app) << text;
  }
  json Find(const std::string& query = "", size_t most = 20, const std::string& from = "") const {
    auto wanted = ReadSampleQuery(query);
    EXPECT_THAT(wanted, IsOk());
    return FindSamples(folder_,
                       {.query = *wanted, .from = ReadSamplePlace(from), .most = most, .within = absl::Minutes(1)});
  }
  static std::vector<int64_t> Steps(const json& found) {
    std::vector<int64_t> steps;
    for (const json& sample : found["samples"]) steps.push_back(sample["step"]);
    return steps;
  }

  std::string folder_;
};

TEST_F(SampleSearchTest, TheNewestComeFirstOverBothFiles) {
  EXPECT_EQ(Find()["available"], false);
  Write("samples.1.jsonl", Line(1) + Line(2));
  Write("samples.jsonl", Line(3) + Line(4));
  const json found = Find();
  EXPECT_THAT(Steps(found), ElementsAre(4, 3, 2, 1));
  EXPECT_EQ(found["next"], "");
  EXPECT_EQ(found["complete"], true);
  EXPECT_EQ(found["available"], true);
}

TEST_F(SampleSearchTest, PagesShowEverySampleOnceAlsoWhenTheFileIsRotatedBetweenThem) {
  for (int64_t step = 1; step <= 10; ++step) Write("samples.jsonl", Line(step));
  const json first = Find("", 4);
  EXPECT_THAT(Steps(first), ElementsAre(10, 9, 8, 7));
  std::filesystem::rename(folder_ + "/samples.jsonl", folder_ + "/samples.1.jsonl");
  Write("samples.jsonl", Line(11));
  const json second = Find("", 4, first["next"]);
  EXPECT_THAT(Steps(second), ElementsAre(6, 5, 4, 3));
  const json third = Find("", 4, second["next"]);
  EXPECT_THAT(Steps(third), ElementsAre(2, 1));
  EXPECT_EQ(third["next"], "");
}

TEST_F(SampleSearchTest, AFullPageThatEndsWithTheOldestSampleIsTheLast) {
  Write("samples.jsonl", Line(1) + Line(2));
  EXPECT_EQ(Find("", 2)["next"], "");
}

TEST_F(SampleSearchTest, FindsTextInEveryPlaceInEitherCase) {
  Write("samples.jsonl", Line(1, {{"prompt", "What is 2+2?"}}) + Line(2, {{"answer", "Four \"quoted\""}}) +
                             Line(3, {{"reward_parts", {{"exact_match", 1}}}}) + Line(4, {{"outcome", "rolled_back"}}) +
                             Line(5, {{"answer", 7}, {"prompt", nullptr}}));
  EXPECT_THAT(Steps(Find("q=what%20IS%202%2B2")), ElementsAre(1));
  EXPECT_THAT(Steps(Find("q=%22Quoted%22")), ElementsAre(2)) << "what JSON escapes is found";
  EXPECT_THAT(Steps(Find("q=exact_")), ElementsAre(3));
  EXPECT_THAT(Steps(Find("q=rolled+nothing")), IsEmpty());
  EXPECT_THAT(Steps(Find("outcome=rolled_back")), ElementsAre(4));
  EXPECT_THAT(Steps(Find("kind=eval")), IsEmpty());
}

TEST_F(SampleSearchTest, BoundsAreInclusiveAndASampleWithoutTheFigureIsOutside) {
  Write("samples.jsonl", Line(1, {{"reward", 0.5}}) + Line(2, {{"reward", 1}}) + Line(3));
  EXPECT_THAT(Steps(Find("reward_from=0.5")), ElementsAre(2, 1));
  EXPECT_THAT(Steps(Find("reward_to=0.5")), ElementsAre(1));
  EXPECT_THAT(Steps(Find("step_from=2&step_to=3")), ElementsAre(3, 2));
}

TEST_F(SampleSearchTest, AQueryThatIsNoneIsRefusedByTheNameOfItsKey) {
  for (const char* query : {"step_from=x", "reward_to=nan", "q=%zz", "q=%4", "step_to=99999999999999999999"}) {
    const auto read = ReadSampleQuery(query);
    EXPECT_THAT(read, HasReason("BAD_QUERY")) << query;
    const std::string key(query, std::string(query).find('='));
    EXPECT_THAT(std::string(read.status().message()), ::testing::StartsWith(key));
  }
  for (const char* place : {"", "5", "5-", "a-b", "5--1", "5-6-7"}) EXPECT_FALSE(ReadSamplePlace(place)) << place;
  EXPECT_EQ(ToText(*ReadSamplePlace("5-6")), "5-6");
}

TEST_F(SampleSearchTest, LinesThatAreNoSamplesArePassedOver) {
  Write("samples.jsonl", "\n\n" + Line(1) + "garbage\n{\"kind\":\"train\",\"epoch\":1,\"step\":2,\"answer\":\n" +
                             std::string(5 << 20, 'x') + "\n" + Line(3) + "{\"kind\":\"train\",\"epoch\":1,\"st");
  EXPECT_THAT(Steps(Find()), ElementsAre(3, 1));
}

TEST_F(SampleSearchTest, NeitherIdsNorLongTextsAreShown) {
  Write("samples.jsonl", Line(1, {{"answer", std::string(100000, 'x')},
                                  {"answer_ids", {1, 2}},
                                  {"turns", {{{"role", "policy"}, {"text", std::string(100000, 'y')}}, 5}}}));
  const json sample = Find()["samples"][0];
  EXPECT_FALSE(sample.contains("answer_ids"));
  EXPECT_LT(sample["answer"].get<std::string>().size(), 20000u);
  EXPECT_LT(sample["turns"][0]["text"].get<std::string>().size(), 20000u);
}

TEST_F(SampleSearchTest, ASearchThatRunsOutOfTimeGoesOnWhereItStopped) {
  constexpr int64_t kSamples = 300;
  for (int64_t step = 1; step <= kSamples; ++step)
    Write("samples.jsonl", Line(step, {{"answer", std::string(4000, 'x')}}));
  const TickingClock clock(absl::Milliseconds(1));
  std::set<int64_t> seen;
  std::string from;
  int pages = 0;
  do {
    ASSERT_LT(++pages, 1000);
    const json found = FindSamples(folder_, {.from = ReadSamplePlace(from), .most = 1000}, clock);
    for (const int64_t step : Steps(found)) EXPECT_TRUE(seen.insert(step).second) << step;
    EXPECT_EQ(found["complete"], found["next"] == "");
    from = found["next"];
  } while (!from.empty());
  EXPECT_THAT(seen, SizeIs(kSamples));
  EXPECT_GT(pages, 1);
}

TEST_F(SampleSearchTest, NeitherALinkNorAPipeIsRead) {
  Write("elsewhere", Line(1));
  std::filesystem::create_symlink(folder_ + "/elsewhere", folder_ + "/samples.jsonl");
  ASSERT_EQ(::mkfifo((folder_ + "/samples.1.jsonl").c_str(), 0600), 0);
  EXPECT_EQ(Find()["available"], false);
}

}  // namespace
}  // namespace syncopate::report
