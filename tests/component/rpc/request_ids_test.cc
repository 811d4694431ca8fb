#include "services/rpc/request_ids.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "syncopate/v1/synchronizer.pb.h"

namespace syncopate::rpc {
namespace {

class RequestIdsTest : public ::testing::Test {
 protected:
  // Runs one TriggerSync whose work answers at once with the number of times that it ran.
  v1::TriggerSyncResponse Trigger(const std::string& id, absl::Status outcome = absl::OkStatus()) {
    v1::TriggerSyncRequest request;
    request.set_request_id(id);
    v1::TriggerSyncResponse response;
    int replies = 0;
    ids_.Run(
        "TriggerSync", request, id, &response,
        [this, &outcome](google::protobuf::Message* out, RequestIds::Done done) {
          static_cast<v1::TriggerSyncResponse*>(out)->set_receivers(++runs_);
          done(outcome);
        },
        [this, &replies](const absl::Status& status) {
          last_ = status;
          ++replies;
        });
    EXPECT_EQ(replies, 1);
    return response;
  }

  RequestIds ids_{4};
  int runs_ = 0;
  absl::Status last_;
};

TEST_F(RequestIdsTest, GivesTheSameAnswerToTheSameIdWithoutWorkingAgain) {
  EXPECT_EQ(Trigger("a").receivers(), 1);
  EXPECT_EQ(Trigger("b").receivers(), 2);
  EXPECT_EQ(Trigger("a").receivers(), 1);
  EXPECT_EQ(runs_, 2);
}

TEST_F(RequestIdsTest, RunsEveryRequestWithoutAnId) {
  EXPECT_EQ(Trigger("").receivers(), 1);
  EXPECT_EQ(Trigger("").receivers(), 2);
}

TEST_F(RequestIdsTest, LetsARefusedRequestTryAgain) {
  Trigger("a", absl::UnavailableError("later"));
  EXPECT_EQ(last_, absl::UnavailableError("later"));
  EXPECT_EQ(Trigger("a").receivers(), 2);
  EXPECT_EQ(last_, absl::OkStatus());
}

TEST_F(RequestIdsTest, ForgetsTheOldestBeyondItsCapacity) {
  for (const char* id : {"a", "b", "c", "d", "e"}) Trigger(id);
  EXPECT_EQ(Trigger("b").receivers(), 2);
  EXPECT_EQ(Trigger("a").receivers(), 6);
}

TEST_F(RequestIdsTest, RefusesAnIdOfMoreThan128BytesAndDoesNotWork) {
  EXPECT_EQ(Trigger(std::string(128, 'x')).receivers(), 1);
  for (size_t bytes : {size_t{129}, size_t{20} << 20}) {
    Trigger(std::string(bytes, 'x'));
    EXPECT_TRUE(absl::IsInvalidArgument(last_));
    EXPECT_EQ(ErrorReason(last_), "REQUEST_ID_TOO_LONG");
    EXPECT_LT(last_.message().size(), 200u) << "the answer does not repeat the id";
  }
  EXPECT_EQ(runs_, 1);
}

TEST_F(RequestIdsTest, KeepsNoMoreBytesThanItMayWhateverTheAnswersAre) {
  RequestIds ids(/*capacity=*/1000, /*max_bytes=*/100000);
  int runs = 0;
  auto list = [&ids, &runs](const std::string& id, size_t bytes) {
    v1::TriggerSyncRequest request;
    request.set_request_id(id);
    v1::ListMembersResponse response;
    ids.Run(
        "Call", request, id, &response,
        [&runs, bytes](google::protobuf::Message* out, RequestIds::Done done) {
          ++runs;
          static_cast<v1::ListMembersResponse*>(out)->add_members()->set_detail(std::string(bytes, 'x'));
          done(absl::OkStatus());
        },
        [](const absl::Status& status) { EXPECT_TRUE(status.ok()); });
    EXPECT_EQ(response.members(0).detail().size(), bytes);
  };
  for (const char* id : {"a", "b", "c"}) list(id, 40000);
  list("c", 40000);
  list("b", 40000);
  EXPECT_EQ(runs, 3) << "the last two are remembered";
  list("a", 40000);
  EXPECT_EQ(runs, 4) << "the first answer was forgotten";
  list("too large", 200000);
  list("too large", 200000);
  EXPECT_EQ(runs, 6) << "an answer that is too large is sent and not kept";
}

TEST_F(RequestIdsTest, RefusesAnIdThatNamedAnotherRequest) {
  Trigger("a");
  v1::EvictMemberRequest other;
  other.set_request_id("a");
  v1::EvictMemberResponse response;
  absl::Status status;
  ids_.Run(
      "EvictMember", other, "a", &response, [](google::protobuf::Message*, RequestIds::Done) { FAIL(); },
      [&status](const absl::Status& reply) { status = reply; });
  EXPECT_EQ(ErrorReason(status), "REQUEST_ID_REUSED");
}

TEST_F(RequestIdsTest, AnswersADuplicateTogetherWithTheFirstAndBlocksNobody) {
  v1::TriggerSyncRequest request;
  RequestIds::Done finish;
  google::protobuf::Message* answer = nullptr;
  v1::TriggerSyncResponse first, second;
  int replies = 0;
  auto reply = [&replies](const absl::Status& status) {
    EXPECT_TRUE(status.ok());
    ++replies;
  };
  auto work = [&](google::protobuf::Message* out, RequestIds::Done done) {
    EXPECT_EQ(answer, nullptr) << "the work was done twice";
    answer = out;
    finish = std::move(done);
  };
  ids_.Run("TriggerSync", request, "a", &first, work, reply);
  ids_.Run("TriggerSync", request, "a", &second, work, reply);
  EXPECT_EQ(replies, 0);
  static_cast<v1::TriggerSyncResponse*>(answer)->set_receivers(7);
  finish(absl::OkStatus());
  EXPECT_EQ(replies, 2);
  EXPECT_EQ(first.receivers(), 7);
  EXPECT_EQ(second.receivers(), 7);
}

TEST_F(RequestIdsTest, WorksOnceWhenManyThreadsSendTheSameId) {
  constexpr int kThreads = 8;
  constexpr int kIds = 4;
  std::atomic<int> runs = 0, replies = 0;
  std::vector<v1::TriggerSyncResponse> responses(kThreads * kIds);  // another thread may fill in a response later
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kIds; ++i) {
        v1::TriggerSyncRequest request;
        ids_.Run(
            "TriggerSync", request, absl::StrCat("id", i), &responses[t * kIds + i],
            [&runs](google::protobuf::Message* out, RequestIds::Done done) {
              ++runs;
              static_cast<v1::TriggerSyncResponse*>(out)->set_receivers(7);
              done(absl::OkStatus());
            },
            [&replies](const absl::Status&) { ++replies; });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(runs, kIds);
  EXPECT_EQ(replies, kThreads * kIds);
  for (const v1::TriggerSyncResponse& response : responses) EXPECT_EQ(response.receivers(), 7);
}

}  // namespace
}  // namespace syncopate::rpc
