#include "synchronizer/plan/payload.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace syncopate::synchronizer {
namespace {

TEST(PayloadTest, TheBaseIsSentIffItIsNotThereOrASleepReallyFreedIt) {
  for (bool present : {false, true}) {
    for (int level : {0, 1, 2}) {
      for (bool frees : {false, true}) {
        for (bool slept : {false, true}) {
          SCOPED_TRACE(absl::StrCat("present ", present, ", level ", level, ", frees ", frees, ", slept ", slept));
          EXPECT_EQ(NeedsBase({present, 1, level, frees, slept}), !present || (level == 2 && frees && slept));
        }
      }
    }
  }
}

TEST(PayloadTest, WhatASleepHasDroppedDoesNotComeBackInALighterSleep) {
  auto lacks = [](ReceiverWeights weights) {
    weights.base_present = true;
    return NeedsBase(weights);
  };
  const ReceiverWeights kept = AfterSleep({}, 1);
  EXPECT_FALSE(lacks(kept));
  EXPECT_TRUE(lacks(AfterSleep(kept, 2)));
  const ReceiverWeights dropped = AfterSleep({}, 2);
  EXPECT_TRUE(lacks(dropped));
  EXPECT_TRUE(lacks(AfterSleep(dropped, 1)));
  ReceiverWeights synced = dropped;
  synced.slept = false;
  EXPECT_FALSE(lacks(synced));
  EXPECT_FALSE(lacks(AfterSleep(synced, 1)));
}

}  // namespace
}  // namespace syncopate::synchronizer
