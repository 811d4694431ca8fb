#include "services/rollouter/rollout_service.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <limits>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "services/rpc/status.h"
#include "tests/component/rollouter/rollout_service_fixture.h"

namespace syncopate::rollouterd {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using Stub = v1::RolloutService::Stub;

TEST_F(RolloutServiceTest, RefusesToGenerateBeforeTheFirstWeightSync) {
  auto answer = Call(&Stub::Generate, Request("a"));
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ErrorReason(answer.status()), "NO_WEIGHTS");
  EXPECT_EQ(Status().state(), "waiting_for_weights");
  InstallTinyWeights(*engine_, {1, 0});
  EXPECT_TRUE(Call(&Stub::Generate, Request("a")).ok());  // the refused request did not reserve the name
}

TEST_F(RolloutServiceTest, GeneratesTheSameTokensForTheSameSeed) {
  InstallTinyWeights(*engine_, {1, 3});
  auto first = Call(&Stub::Generate, Request(""));
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_NE(first->request_id(), "");
  EXPECT_EQ(first->tokens_size(), 6);
  EXPECT_EQ(first->logprobs_size(), 6);
  ASSERT_EQ(first->spans_size(), 1);
  EXPECT_EQ(first->spans(0).version().step(), 3);
  EXPECT_EQ(first->spans(0).end(), 6);
  EXPECT_EQ(first->finish(), v1::FINISH_REASON_LENGTH);
  auto second = Call(&Stub::Generate, Request(""));
  EXPECT_THAT(second->tokens(), ElementsAreArray(first->tokens()));
  EXPECT_NE(second->request_id(), first->request_id());
}

TEST_F(RolloutServiceTest, StreamsWhatGenerateAnswersAndEndsWithTheFinishReason) {
  InstallTinyWeights(*engine_, {1, 3});
  auto whole = Call(&Stub::Generate, Request("whole")).value();
  grpc::ClientContext context;
  context.set_deadline(rpc::CallDeadline(kTestDeadline));
  v1::GenerateStreamRequest request;
  *request.mutable_request() = Request("stream");
  auto reader = stub_->GenerateStream(&context, request);
  std::vector<int32_t> tokens;
  std::vector<v1::FinishReason> finishes;
  v1::GenerateStreamResponse response;
  while (reader->Read(&response)) {
    tokens.push_back(response.token());
    finishes.push_back(response.finish());
    EXPECT_EQ(response.version().step(), 3);
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_THAT(tokens, ElementsAreArray(whole.tokens()));
  std::vector<v1::FinishReason> expected(5, v1::FINISH_REASON_UNSPECIFIED);
  expected.push_back(v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(finishes, expected);
}

TEST_F(RolloutServiceTest, AnswersSeveralSamplesOfAPromptWholeAndAsAStream) {
  InstallTinyWeights(*engine_, {1, 3});
  const auto one = Call(&Stub::Generate, Request("one")).value();
  v1::GenerateRequest request = Request("three");
  request.set_n(3);
  request.mutable_sampling()->set_top_logprobs(2);
  const auto three = Call(&Stub::Generate, request).value();
  EXPECT_THAT(three.tokens(), ElementsAreArray(one.tokens())) << "the first is what a request for one gives";
  ASSERT_EQ(three.top_logprobs_size(), 6);
  EXPECT_EQ(three.top_logprobs(0).tokens_size(), 2);
  ASSERT_EQ(three.more_samples_size(), 2);
  EXPECT_EQ(three.more_samples(0).finish(), v1::FINISH_REASON_LENGTH);
  EXPECT_NE(std::vector<int32_t>(three.more_samples(0).tokens().begin(), three.more_samples(0).tokens().end()),
            std::vector<int32_t>(three.more_samples(1).tokens().begin(), three.more_samples(1).tokens().end()));
  grpc::ClientContext context;
  context.set_deadline(rpc::CallDeadline(kTestDeadline));
  v1::GenerateStreamRequest stream;
  *stream.mutable_request() = request;
  auto reader = stub_->GenerateStream(&context, stream);
  std::vector<std::vector<int32_t>> tokens(3);
  int finished = 0;
  v1::GenerateStreamResponse response;
  while (reader->Read(&response)) {
    tokens.at(static_cast<size_t>(response.sample())).push_back(response.token());
    EXPECT_EQ(response.top_logprobs().logprobs_size(), 2);
    finished += response.finish() == v1::FINISH_REASON_LENGTH ? 1 : 0;
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(finished, 3);
  EXPECT_THAT(tokens[0], ElementsAreArray(three.tokens()));
  EXPECT_THAT(tokens[1], ElementsAreArray(three.more_samples(0).tokens()));
  EXPECT_THAT(tokens[2], ElementsAreArray(three.more_samples(1).tokens()));
}

TEST_F(RolloutServiceTest, EndsAtAStopSequenceAndDrawsOnlyWhatIsAllowed) {
  InstallTinyWeights(*engine_, {1, 3});
  const auto free = Call(&Stub::Generate, Request("free")).value();
  v1::GenerateRequest request = Request("stopped");
  v1::TokenSequence* stop = request.mutable_sampling()->add_stop_sequences();
  for (int i : {1, 2, 3}) stop->add_tokens(free.tokens(i));
  const auto stopped = Call(&Stub::Generate, request).value();
  EXPECT_EQ(stopped.tokens_size(), 4);
  EXPECT_EQ(stopped.finish(), v1::FINISH_REASON_STOP);
  request = Request("allowed");
  for (int token : {3, 5}) request.mutable_sampling()->add_allowed_token_ids(token);
  const auto allowed = Call(&Stub::Generate, request).value();
  EXPECT_EQ(allowed.tokens_size(), 6);
  for (int32_t token : allowed.tokens()) EXPECT_TRUE(token == 3 || token == 5) << token;
}

TEST_F(RolloutServiceTest, RefusesToAnswerWithLogProbabilitiesThatAreNotFinite) {
  auto* shadow = reinterpret_cast<float*>(engine_->shadow());
  std::fill_n(shadow, engine_->manifest().arena_bytes() / sizeof(float), std::nanf(""));
  ASSERT_TRUE(engine_->Install({1, 0}, 1, kTestDeadline).ok());
  auto answer = Call(&Stub::Generate, Request("whole"));
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(ErrorReason(answer.status()), "BAD_LOGPROB");
  grpc::ClientContext context;
  context.set_deadline(rpc::CallDeadline(kTestDeadline));
  v1::GenerateStreamRequest request;
  *request.mutable_request() = Request("stream");
  auto reader = stub_->GenerateStream(&context, request);
  v1::GenerateStreamResponse response;
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_EQ(ErrorReason(rpc::FromGrpc(reader->Finish())), "BAD_LOGPROB");
}

TEST_F(RolloutServiceTest, ChecksLimitsAtAdmissionAndChangesNothing) {
  InstallTinyWeights(*engine_, {1, 0});
  auto refused = [this](const v1::GenerateRequest& request, const std::string& reason = "BAD_REQUEST") {
    absl::Status status = Call(&Stub::Generate, request).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(ErrorReason(status), reason);
    v1::GenerateStreamRequest stream;
    *stream.mutable_request() = request;
    grpc::ClientContext context;
    context.set_deadline(rpc::CallDeadline(kTestDeadline));
    v1::GenerateStreamResponse response;
    auto reader = stub_->GenerateStream(&context, stream);
    EXPECT_FALSE(reader->Read(&response));
    EXPECT_EQ(rpc::FromGrpc(reader->Finish()), status);
  };
  v1::GenerateRequest request = Request("a");
  request.clear_prompt_ids();
  refused(request);
  for (int i = 0; i < 4001; ++i) request.add_prompt_ids(1);
  refused(request);
  request = Request("a");
  request.set_prompt_ids(0, -1);
  refused(request);
  request = Request("a");
  request.set_adapter(v1::ADAPTER_BASE);
  refused(request, "NO_ADAPTERS");
  request.set_adapter(static_cast<v1::Adapter>(9));
  refused(request);
  request = Request("a", 0);
  refused(request);
  request = Request(std::string(129, 'x'));
  refused(request, "REQUEST_ID_TOO_LONG");
  v1::AbortRequest abort;
  abort.set_request_id(request.request_id());
  EXPECT_EQ(ErrorReason(Call(&Stub::Abort, abort).status()), "REQUEST_ID_TOO_LONG");
  request = Request("a");
  request.mutable_sampling()->set_temperature(std::numeric_limits<float>::quiet_NaN());
  refused(request);
  request = Request("a");
  for (int i = 0; i < 65; ++i) request.mutable_sampling()->add_stop_token_ids(i);
  refused(request);
  request = Request("a");
  for (int i = 0; i < 65; ++i) request.mutable_sampling()->add_stop_sequences()->add_tokens(i);
  refused(request);
  request = Request("a");
  v1::TokenSequence* stop = request.mutable_sampling()->add_stop_sequences();
  for (int i = 0; i < 65; ++i) stop->add_tokens(i % 8);
  refused(request);
  request = Request("a");
  request.mutable_sampling()->set_top_logprobs(21);
  refused(request);
  for (int n : {-1, 17, 2000}) {
    request = Request("a");
    request.set_n(n);
    refused(request);
  }
  EXPECT_EQ(Status().running_sequences() + Status().waiting_sequences(), 0);
  EXPECT_TRUE(Call(&Stub::Generate, Request("a")).ok());
}

TEST_F(RolloutServiceTest, RefusesAMessageOverTheByteLimitAndLivesOn) {
  InstallTinyWeights(*engine_, {1, 0});
  v1::GenerateRequest request = Request("a");
  request.mutable_prompt_ids()->Resize(5 << 20, 1);
  EXPECT_EQ(Call(&Stub::Generate, request).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(Call(&Stub::Generate, Request("a")).ok());
}

TEST_F(RolloutServiceTest, RefusesASecondRequestOfTheSameNameWhileTheFirstRuns) {
  InstallTinyWeights(*engine_, {1, 0});
  auto running = StartLong("twin");
  EXPECT_EQ(ErrorReason(Call(&Stub::Generate, Request("twin")).status()), "REQUEST_ID_IN_USE");
  running->context.TryCancel();
}

TEST_F(RolloutServiceTest, AnswersModeSwitchesWithoutActingAtAnyTimeAndConcurrently) {
  auto switch_modes = [this] {
    for (int i = 0; i < 20; ++i) {
      EXPECT_FALSE(Call(&Stub::TrainerMode, v1::RolloutServiceTrainerModeRequest()).value().acted());
      EXPECT_FALSE(Call(&Stub::RolloutMode, v1::RolloutServiceRolloutModeRequest()).value().acted());
    }
  };
  switch_modes();  // before any weights are installed
  EXPECT_EQ(Status().state(), "waiting_for_weights");
  InstallTinyWeights(*engine_, {1, 4});
  auto expected = Call(&Stub::Generate, Request("x")).value();
  auto before = Status();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) threads.emplace_back(switch_modes);
  for (int i = 0; i < 10; ++i) {
    EXPECT_THAT(Call(&Stub::Generate, Request("x")).value().tokens(), ElementsAreArray(expected.tokens()));
  }
  for (std::thread& thread : threads) thread.join();
  auto after = Status();
  EXPECT_EQ(after.state(), before.state());
  EXPECT_EQ(after.serving().step(), before.serving().step());
  EXPECT_EQ(after.serving_digest(), before.serving_digest());
  EXPECT_EQ(after.installs(), before.installs());
}

TEST_F(RolloutServiceTest, RefusesCheckpointsWithoutOpeningAFile) {
  // An open for reading would block for ever, and the test would notice it.
  std::string pipe = ::testing::TempDir() + "/syncopate_no_actor_pipe";
  unlink(pipe.c_str());
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  v1::LoadCheckpointRequest load;
  load.set_path(pipe);
  absl::Status status = Call(&Stub::LoadCheckpoint, load).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ErrorReason(status), "NO_ACTOR");
  EXPECT_EQ(open(pipe.c_str(), O_WRONLY | O_NONBLOCK), -1);
  EXPECT_EQ(errno, ENXIO);  // no process has the pipe open for reading
  unlink(pipe.c_str());
  v1::RolloutServiceSaveCheckpointRequest save;
  save.set_path(pipe);
  EXPECT_EQ(ErrorReason(Call(&Stub::SaveCheckpoint, save).status()), "NO_ACTOR");
  struct stat unused;
  EXPECT_NE(stat(pipe.c_str(), &unused), 0);
}

TEST_F(RolloutServiceTest, AbortsOneRequestByNameOrAll) {
  InstallTinyWeights(*engine_, {1, 0});
  auto first = StartLong("first");
  auto second = StartLong("second");
  auto third = StartLong("third");
  v1::AbortRequest abort;
  abort.set_request_id("second");
  EXPECT_EQ(Call(&Stub::Abort, abort).value().aborted(), 1);
  while (second->reader->Read(&second->last)) {
  }
  EXPECT_EQ(second->last.finish(), v1::FINISH_REASON_ABORTED);
  EXPECT_TRUE(second->reader->Finish().ok());
  EXPECT_EQ(Call(&Stub::Abort, abort).value().aborted(), 0);
  EXPECT_EQ(Call(&Stub::Abort, v1::AbortRequest()).value().aborted(), 2);
}

TEST_F(RolloutServiceTest, AnAbortEndsASequenceWithinFiftyMilliseconds) {
  InstallTinyWeights(*engine_, {1, 0});
  std::vector<double> milliseconds;
  for (const char* name : {"a", "b", "c", "d", "e"}) {
    auto running = StartLong(name);
    v1::AbortRequest abort;
    abort.set_request_id(name);
    const absl::Time begin = absl::Now();
    EXPECT_EQ(Call(&Stub::Abort, abort).value().aborted(), 1);
    while (running->reader->Read(&running->last)) {
    }
    milliseconds.push_back(absl::ToDoubleMilliseconds(absl::Now() - begin));
    EXPECT_EQ(running->last.finish(), v1::FINISH_REASON_ABORTED);
    EXPECT_TRUE(running->reader->Finish().ok());
  }
  std::sort(milliseconds.begin(), milliseconds.end());
  RecordProperty("median_ms", absl::StrFormat("%.2f", milliseconds[2]));
  EXPECT_LE(milliseconds[2], 50);
}

TEST_F(RolloutServiceTest, EndsGenerationWhenItsClientGoesAway) {
  InstallTinyWeights(*engine_, {1, 0});
  EXPECT_EQ(Call(&Stub::Generate, Request("long", 3900), absl::Milliseconds(50)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  auto running = StartLong("stream");
  running->context.TryCancel();
  EXPECT_TRUE(Await([](const auto& status) { return status.running_sequences() == 0; }));
  EXPECT_LT(Status().generated_tokens(), 7000);
}

TEST_F(RolloutServiceTest, KeepsAWholeAnswerForAClientThatStandsStillForAMoment) {
  InstallTinyWeights(*engine_, {1, 0});
  auto late = StartLong("late");
  EXPECT_TRUE(Await([](const auto& status) { return status.running_sequences() == 0; }));
  while (late->reader->Read(&late->last)) {
  }
  const absl::Status end = rpc::FromGrpc(late->reader->Finish());
  EXPECT_TRUE(end.ok()) << end;
  EXPECT_EQ(late->last.finish(), v1::FINISH_REASON_LENGTH);
}

TEST_F(RolloutServiceTest, BoundsTheRequestsUnderWay) {
  InstallTinyWeights(*engine_, {1, 0});
  ASSERT_TRUE(Call(&Stub::Pause, v1::RolloutServicePauseRequest()).ok());
  std::atomic<int> exhausted = 0, timed_out = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 20; ++i) {
    threads.emplace_back([this, &exhausted, &timed_out] {
      absl::Status status = Call(&Stub::Generate, Request(""), absl::Seconds(2)).status();
      exhausted += ErrorReason(status) == "TOO_MANY_REQUESTS" ? 1 : 0;
      timed_out += status.code() == absl::StatusCode::kDeadlineExceeded ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(timed_out, 12);
  EXPECT_EQ(exhausted, 8);
}

TEST_F(RolloutServiceTest, SaysWhoItIsAndWhatItHasDone) {
  InstallTinyWeights(*engine_, {2, 9});
  ASSERT_TRUE(Call(&Stub::Generate, Request("x")).ok());
  auto status = Status();
  EXPECT_EQ(status.member().replica_id(), "rollouter-0");
  EXPECT_EQ(status.serving().epoch(), 2);
  EXPECT_EQ(status.serving().step(), 9);
  EXPECT_EQ(status.serving_digest(), 7u);
  EXPECT_EQ(status.installs(), 1);
  EXPECT_EQ(status.groups_submitted(), 42);
  // The tokens are counted when the decode step that completed the answer has ended.
  EXPECT_TRUE(Await([](const auto& later) { return later.generated_tokens() >= 6; }));
}

}  // namespace
}  // namespace syncopate::rollouterd
