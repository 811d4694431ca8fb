#include "trainer/data/partial_answers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "base/trajectory.h"

namespace syncopate::trainer {
namespace {

constexpr GroupId kGroup{0, 7};
constexpr int64_t kRoom = 1 << 20;

// Token and log-probability at a place depend on the place alone, as those of one version do.
int32_t TokenAt(int32_t sample, int32_t place) { return sample * 1000 + place; }
float LogProbAt(int32_t place) { return -0.5f - static_cast<float>(place); }

AnswerPart MakePart(int32_t sample, int32_t begin, int32_t end, int64_t step = 1) {
  AnswerPart part{.sample = sample, .begin = begin};
  for (int32_t place = begin; place < end; ++place) {
    part.tokens.push_back(TokenAt(sample, place));
    part.logprobs.push_back(LogProbAt(place));
  }
  if (begin < end) part.spans = {{{1, step}, begin, end}};
  return part;
}

Trajectory MakeRest(int32_t sample, int32_t begin, int32_t end, int64_t step = 1) {
  const AnswerPart part = MakePart(sample, begin, end, step);
  Trajectory rest;
  rest.tokens = part.tokens;
  rest.logprobs = part.logprobs;
  rest.spans = part.spans;
  return rest;
}

TrajectoryGroup MakeAnswer(int32_t attempt, const std::vector<Trajectory>& samples) {
  TrajectoryGroup answer;
  answer.lease = {kGroup, attempt};
  answer.samples = samples;
  return answer;
}

bool IsWhole(const Trajectory& answer, int32_t sample, int32_t length) {
  const Trajectory whole = MakeRest(sample, 0, length);
  return answer.tokens == whole.tokens && answer.logprobs == whole.logprobs && answer.spans == whole.spans;
}

// One group of two samples on rollouters that die at random, with reports that arrive twice: whether the answer that
// is joined in the end is that of an undisturbed run.
bool SurvivesKills(PartialAnswers* kept, uint64_t seed) {
  std::mt19937_64 random(seed);
  constexpr int32_t kLength = 40;
  for (int32_t attempt = 1;; ++attempt) {
    const LeaseId lease{kGroup, attempt};
    const std::vector<AnswerStart> starts = kept->BeginLease(lease, 2, true);
    std::vector<int32_t> made(2, 0);
    for (size_t i = 0; i < starts.size(); ++i) made[i] = static_cast<int32_t>(starts[i].tokens.size());
    const std::vector<int32_t> begun = made;
    bool dies = false;
    while (!dies && (made[0] < kLength || made[1] < kLength)) {
      for (int32_t sample = 0; sample < 2; ++sample) {
        int32_t& at = made[static_cast<size_t>(sample)];
        const int32_t end = std::min(kLength, at + static_cast<int32_t>(random() % 4));
        const AnswerPart part = MakePart(sample, at, end);
        if (!part.tokens.empty() && !kept->Add(lease, part).ok()) return false;
        if (random() % 3 == 0 && end > at) static_cast<void>(kept->Add(lease, part));  // the reply was lost
        at = end;
      }
      dies = random() % 8 == 0;
    }
    if (dies) continue;
    TrajectoryGroup answer = MakeAnswer(attempt, {});
    for (int32_t sample = 0; sample < 2; ++sample) {
      answer.samples.push_back(MakeRest(sample, begun[static_cast<size_t>(sample)], kLength));
    }
    if (kept->HasStart(lease) && !kept->Join(&answer).ok()) return false;
    return IsWhole(answer.samples[0], 0, kLength) && IsWhole(answer.samples[1], 1, kLength);
  }
}

class CountsTwice : public PartialAnswers {
 public:
  using PartialAnswers::PartialAnswers;
  bool ContinuesKept(int32_t, int32_t) const override { return true; }
};
class LosesPrefix : public PartialAnswers {
 public:
  using PartialAnswers::PartialAnswers;
  bool NeedsPrefix(int32_t) const override { return false; }
};

TEST(PartialAnswersTest, JoinedAnswersEqualThoseOfAnUndisturbedRunAndMutantsAreFound) {
  int wrong_twice = 0;
  int wrong_prefix = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    PartialAnswers kept(kRoom);
    EXPECT_TRUE(SurvivesKills(&kept, seed)) << seed;
    CountsTwice twice(kRoom);
    wrong_twice += SurvivesKills(&twice, seed) ? 0 : 1;
    LosesPrefix lost(kRoom);
    wrong_prefix += SurvivesKills(&lost, seed) ? 0 : 1;
  }
  EXPECT_GT(wrong_twice, 0);
  EXPECT_GT(wrong_prefix, 0);
}

TEST(PartialAnswersTest, ALeaseIsJoinedToTheStartItGotAndNotToWhatItReportedSince) {
  PartialAnswers kept(kRoom);
  kept.BeginLease({kGroup, 1}, 1, true);
  ASSERT_TRUE(kept.Add({kGroup, 1}, MakePart(0, 0, 5)).ok());
  EXPECT_EQ(kept.BeginLease({kGroup, 2}, 1, true).front().tokens.size(), 5u);
  ASSERT_TRUE(kept.Add({kGroup, 2}, MakePart(0, 5, 8)).ok());
  EXPECT_EQ(kept.Add({kGroup, 1}, MakePart(0, 8, 9)).code(), absl::StatusCode::kFailedPrecondition);
  TrajectoryGroup answer = MakeAnswer(2, {MakeRest(0, 5, 10)});
  ASSERT_TRUE(kept.Join(&answer).ok());
  EXPECT_TRUE(IsWhole(answer.samples.front(), 0, 10));
}

TEST(PartialAnswersTest, AFinishedSampleIsOnlyScored) {
  PartialAnswers kept(kRoom);
  kept.BeginLease({kGroup, 1}, 1, true);
  AnswerPart part = MakePart(0, 0, 5);
  part.finish = FinishReason::kLength;
  ASSERT_TRUE(kept.Add({kGroup, 1}, part).ok());
  EXPECT_EQ(kept.BeginLease({kGroup, 2}, 1, true).front().finish, FinishReason::kLength);
  Trajectory scored;
  scored.reward = 1;
  TrajectoryGroup answer = MakeAnswer(2, {scored});
  ASSERT_TRUE(kept.Join(&answer).ok());
  EXPECT_TRUE(IsWhole(answer.samples.front(), 0, 5));
  EXPECT_EQ(answer.samples.front().finish, FinishReason::kLength);
  EXPECT_EQ(answer.samples.front().reward, 1);
}

TEST(PartialAnswersTest, WhatFindsNoRoomIsMadeAgainBehindWhatIsKept) {
  PartialAnswers kept(100);
  EXPECT_TRUE(kept.BeginLease({kGroup, 1}, 1, true).empty());
  ASSERT_TRUE(kept.Add({kGroup, 1}, MakePart(0, 0, 5)).ok());
  EXPECT_EQ(kept.Add({kGroup, 1}, MakePart(0, 5, 30)).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(kept.Add({kGroup, 1}, MakePart(0, 30, 31)).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(kept.HasStart({kGroup, 1})) << "its answer is whole as it is";
  EXPECT_EQ(kept.BeginLease({kGroup, 2}, 1, true).front().tokens.size(), 5u);
  TrajectoryGroup rest = MakeAnswer(2, {MakeRest(0, 5, 30)});
  ASSERT_TRUE(kept.Join(&rest).ok());
  EXPECT_TRUE(IsWhole(rest.samples.front(), 0, 30));
  kept.Forget(kGroup);
  EXPECT_EQ(kept.bytes(), 0);
}

TEST(PartialAnswersTest, NothingIsKeptWithoutAnyRoom) {
  PartialAnswers kept(0);
  EXPECT_TRUE(kept.BeginLease({kGroup, 1}, 1, true).empty());
  EXPECT_FALSE(kept.Add({kGroup, 1}, MakePart(0, 0, 1)).ok());
  EXPECT_FALSE(kept.HasTokens(kGroup));
}

TEST(PartialAnswersTest, RefusesAnImpossiblePartAndKeepsWhatItHas) {
  PartialAnswers kept(kRoom);
  kept.BeginLease({kGroup, 1}, 1, true);
  AnswerPart part = MakePart(0, 0, 5);
  part.logprobs.pop_back();
  EXPECT_EQ(kept.Add({kGroup, 1}, part).code(), absl::StatusCode::kInvalidArgument);
  part = MakePart(0, 0, 5);
  part.spans.front().end = 4;
  EXPECT_EQ(kept.Add({kGroup, 1}, part).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(kept.Add({kGroup, 1}, MakePart(1, 0, 5)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(kept.bytes(), 0);
}

}  // namespace
}  // namespace syncopate::trainer
