#include "services/trainer/data_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "tests/support/status_matchers.h"
#include "trainer/data/prompt_queue.h"

namespace syncopate::trainerd {
namespace {

using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;

TEST(DataCodecTest, RecordsAndStatesSurviveTheRoundTrip) {
  Lease lease;
  lease.id = {{2, 9}, 3};
  lease.samples = 2;
  lease.prompt_ids = {1, 2};
  lease.answer_ids = {3, 4, 5};
  TrajectoryGroup answer;
  answer.lease = lease.id;
  answer.prompt_ids = lease.prompt_ids;
  for (int i = 0; i < lease.samples; ++i) {
    Trajectory sample;
    sample.tokens = lease.answer_ids;
    sample.logprobs.assign(sample.tokens.size(), -0.25f);
    sample.spans = {{{4, 7}, 0, static_cast<int32_t>(sample.tokens.size())}};
    answer.samples.push_back(std::move(sample));
  }
  auto group = std::make_shared<const TrajectoryGroup>(std::move(answer));
  auto accepted = DecodeLogRecord(EncodeLogRecord(trainer::AcceptedRecord{{4, 6}, group}));
  ASSERT_THAT(accepted, IsOk());
  const auto& decoded = std::get<trainer::AcceptedRecord>(*accepted);
  EXPECT_EQ(decoded.admitted, (PolicyVersion{4, 6}));
  EXPECT_EQ(decoded.group->lease, lease.id);
  EXPECT_EQ(decoded.group->samples[1].tokens, group->samples[1].tokens);
  EXPECT_EQ(decoded.group->samples[1].spans, group->samples[1].spans);

  auto take = DecodeLogRecord(EncodeLogRecord(trainer::TakeRecord{{4, 8}, {lease.id}}));
  ASSERT_THAT(take, IsOk());
  EXPECT_EQ(std::get<trainer::TakeRecord>(*take).groups[0], lease.id);
  EXPECT_FALSE(std::get<trainer::TakeRecord>(*take).supervised);
  auto taught = DecodeLogRecord(EncodeLogRecord(trainer::TakeRecord{{4, 8}, {lease.id}, true}));
  ASSERT_THAT(taught, IsOk());
  EXPECT_TRUE(std::get<trainer::TakeRecord>(*taught).supervised);
  auto skip = DecodeLogRecord(EncodeLogRecord(trainer::DropRecord{lease.id, trainer::DropReason::kSkipped}));
  ASSERT_TRUE(skip.ok()) << skip.status();
  EXPECT_EQ(std::get<trainer::DropRecord>(*skip).reason, trainer::DropReason::kSkipped);
  auto late = DecodeLogRecord(EncodeLogRecord(trainer::DropRecord{lease.id, trainer::DropReason::kPastDeadline}));
  ASSERT_THAT(late, IsOk());
  EXPECT_EQ(std::get<trainer::DropRecord>(*late).reason, trainer::DropReason::kPastDeadline);
  auto drop = DecodeLogRecord(EncodeLogRecord(trainer::DropRecord{lease.id, trainer::DropReason::kRolledBack}));
  ASSERT_THAT(drop, IsOk());
  EXPECT_EQ(std::get<trainer::DropRecord>(*drop).reason, trainer::DropReason::kRolledBack);
  EXPECT_THAT(DecodeLogRecord(""), HasReason("BAD_RECORD"));
  EXPECT_THAT(DecodeLogRecord("\x01"), HasReason("BAD_RECORD"));

  trainer::DataState state{
      .next = {1, 20},
      .consumed_below = {1, 3},
      .consumed_above = {{1, 5}, {1, 8}},
      .attempts = {{{1, 4}, 2}, {{1, 19}, 1}},
      .accepted = {{{1, 8}, 3}, {{0, 77}, 1}, {{1, 5}, 1}},
      .sums = {.accepted = 9,
               .filtered = 1,
               .dropped_stale = 2,
               .rolled_back = 3,
               .trained = 4,
               .trained_samples = 16,
               .supervised_tokens = 8,
               .skipped = 6,
               .past_deadline = 5,
               .staleness = {.tokens = {70, 0, 30}, .masked_tokens = 3, .groups = 4, .mixed_groups = 1},
               .counted_to = 17}};
  auto again = DecodeDataState(EncodeDataState(state));
  ASSERT_THAT(again, IsOk());
  EXPECT_EQ(*again, state);
  trainer::DataState beyond = state;
  beyond.consumed_above = {{1, 25}};
  EXPECT_THAT(DecodeDataState(EncodeDataState(beyond)), HasReason("BAD_SNAPSHOT"));
  beyond = state;
  beyond.accepted = {{{1, 25}, 1}};
  EXPECT_THAT(DecodeDataState(EncodeDataState(beyond)), HasReason("BAD_SNAPSHOT"));
  beyond.accepted.assign(trainer::PromptQueue::kRemembered + 1, {{1, 5}, 1});
  EXPECT_THAT(DecodeDataState(EncodeDataState(beyond)), HasReason("BAD_SNAPSHOT"));
  beyond = state;
  beyond.sums.staleness.tokens = {5, -1};
  EXPECT_THAT(DecodeDataState(EncodeDataState(beyond)), HasReason("BAD_SNAPSHOT"));
}

TEST(DataCodecTest, TheAttemptsOf65536ConsumedGroupsTakeThreeBytesEach) {
  trainer::DataState state{.next = {0, 1000000}, .consumed_below = {0, 1000000}};
  for (int64_t i = 0; i < static_cast<int64_t>(trainer::PromptQueue::kRemembered); ++i) {
    state.accepted.push_back({{0, 900000 + (i ^ 7)}, 1 + static_cast<int32_t>(i % 3)});
  }
  const std::string bytes = EncodeDataState(state);
  EXPECT_LT(bytes.size(), 3 * trainer::PromptQueue::kRemembered + 100);
  EXPECT_EQ(*DecodeDataState(bytes), state);
}

}  // namespace
}  // namespace syncopate::trainerd
