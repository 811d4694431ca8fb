#include "synchronizer/ipc/fetch_cursor.h"

#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncopate::synchronizer::ipc {
namespace {

using ::testing::ElementsAre;

TEST(FetchCursorTest, GivesChunksInTheOrderOfTheSegments) {
  FetchCursor cursor({{0, 0, 100, 200, 25}, {1, 1, 0, 300, 5}}, 10);
  cursor.AllAvailable(0);
  cursor.AllAvailable(1);
  EXPECT_EQ(cursor.Next(), (Segment{0, 0, 100, 200, 10}));
  EXPECT_EQ(cursor.Next(), (Segment{0, 0, 110, 210, 10}));
  EXPECT_EQ(cursor.Next(), (Segment{0, 0, 120, 220, 5}));
  EXPECT_EQ(cursor.Next(), (Segment{1, 1, 0, 300, 5}));
  EXPECT_EQ(cursor.Next(), std::nullopt);
  EXPECT_EQ(cursor.bytes_in_flight(), 30);
  EXPECT_FALSE(cursor.done());
  EXPECT_THAT(cursor.Finish(4), ElementsAre(0, 1));
  EXPECT_TRUE(cursor.done());
}

TEST(FetchCursorTest, NeverGoesBeyondWhatTheUpstreamHas) {
  FetchCursor cursor({{0, 3, 0, 0, 10}, {0, 3, 50, 50, 10}}, 8);
  EXPECT_EQ(cursor.Next(), std::nullopt);
  EXPECT_EQ(cursor.waits_for(), 0);
  EXPECT_FALSE(cursor.ready());
  cursor.Available(0, 3, 6);
  EXPECT_TRUE(cursor.ready());
  EXPECT_EQ(cursor.Next(), (Segment{0, 3, 0, 0, 6}));
  EXPECT_EQ(cursor.Next(), std::nullopt);
  cursor.Available(0, 3, 13);
  EXPECT_EQ(cursor.Next(), (Segment{0, 3, 6, 6, 4}));
  EXPECT_EQ(cursor.Next(), (Segment{0, 3, 50, 50, 3}));
  EXPECT_EQ(cursor.Next(), std::nullopt);
}

TEST(FetchCursorTest, NewsThatCameOutOfOrderTakesNothingBack) {
  FetchCursor cursor({{0, 0, 0, 0, 10}}, 100);
  cursor.Available(0, 0, 9);
  cursor.Available(0, 0, 4);
  EXPECT_EQ(cursor.Next()->bytes, 9);
}

TEST(FetchCursorTest, WaitsForTheUpstreamWhoseTurnItIsThoughAnotherOneIsReady) {
  FetchCursor cursor({{0, 0, 0, 0, 10}, {1, 1, 0, 10, 10}}, 100);
  cursor.AllAvailable(1);
  EXPECT_EQ(cursor.Next(), std::nullopt) << "in another order two readers would share one upstream";
  EXPECT_EQ(cursor.waits_for(), 0);
}

TEST(FetchCursorTest, CountsWhatArrivedBySource) {
  FetchCursor cursor({{0, 0, 0, 0, 10}, {1, 1, 0, 10, 10}}, 5);
  cursor.AllAvailable(0);
  cursor.AllAvailable(1);
  while (cursor.Next().has_value()) {
  }
  EXPECT_EQ(cursor.progress(0), 0);
  cursor.Finish(1);
  EXPECT_EQ(cursor.progress(0), 5);
  cursor.Finish(2);
  EXPECT_EQ(cursor.progress(0), 10);
  EXPECT_EQ(cursor.progress(1), 5);
  EXPECT_EQ(cursor.in_flight(), 1);
  EXPECT_EQ(cursor.bytes_in_flight(), 5);
}

TEST(FetchCursorTest, NothingToFetchIsDoneAtOnce) {
  FetchCursor cursor({}, 10);
  EXPECT_TRUE(cursor.done());
  EXPECT_EQ(cursor.waits_for(), -1);
}

TEST(FetchCursorTest, WhateverTheNewsAllBytesAreGivenExactlyOnce) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<Segment> segments;
    int64_t total = 0;
    for (uint64_t i = 0; i <= random() % 6; ++i) {
      auto bytes = static_cast<int64_t>(1 + random() % 50);
      segments.push_back({static_cast<int32_t>(i / 2), static_cast<int32_t>(i / 2), 1000 + total, total, bytes});
      total += bytes;
    }
    FetchCursor cursor(segments, static_cast<int64_t>(1 + random() % 20));
    std::vector<int> copied(total, 0);
    int64_t available = 0;
    while (!cursor.done()) {
      available += static_cast<int64_t>(random() % 10);
      for (int32_t upstream = 0; upstream < 3; ++upstream) cursor.Available(upstream, upstream, available);
      while (auto chunk = cursor.Next()) {
        ASSERT_EQ(chunk->from, chunk->to + 1000);
        for (int64_t at = chunk->to; at < chunk->to + chunk->bytes; ++at) ++copied[at];
      }
      cursor.Finish(static_cast<int64_t>(random() % (cursor.in_flight() + 1)));
    }
    EXPECT_THAT(copied, ::testing::Each(1)) << "seed " << seed;
  }
}

}  // namespace
}  // namespace syncopate::synchronizer::ipc
