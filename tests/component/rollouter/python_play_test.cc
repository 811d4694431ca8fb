// The client of environments and the real worker of python/: the environments that are built in, played on both sides.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/philox.h"
#include "rollouter/environment/environment.h"
#include "services/rollouter/play_client.h"
#include "syncopate/v1/environment.grpc.pb.h"
#include "tests/support/eventually.h"
#include "tests/support/notification.h"
#include "tests/support/process.h"

namespace syncopate::rollouterd {
namespace {

using rollouter::EnvironmentMessage;
using rollouter::EnvironmentRegistry;
using Said = absl::StatusOr<EnvironmentMessage>;

constexpr char kSlowTool[] = R"(
import asyncio
from syncopate import environment

@environment("slow")
class Slow:
    async def reset(self, task, seed): pass
    async def step(self, action):
        if action.text == "sleep": await asyncio.sleep(3600)
        return action.text
)";

class PythonPlayTest : public ::testing::Test {
 protected:
  PythonPlayTest() {
    std::ofstream(dir_.path() + "/code.py") << kSlowTool;
    worker_ = testing::Process::Start({.program = SYNCOPATE_PYTHON,
                                       .args = {"-m", "syncopate.worker", dir_.path() + "/code.py", "-m",
                                                "syncopate.games", "--listen", address()},
                                       .log_path = dir_.path() + "/log",
                                       .working_folder = SYNCOPATE_SOURCE_DIR "/python"})
                  .value();
    client_ = PlayClient::Start({.address = address(), .max_backoff = absl::Milliseconds(50)});
  }
  ~PythonPlayTest() override { client_->Stop(); }
  std::string address() const { return absl::StrCat("unix:", dir_.path(), "/w.sock"); }

  Said Wait(const std::function<void(rollouter::RemoteEnvironment::Done)>& call) {
    auto said = std::make_shared<Mailbox<Said>>();
    call([said](Said message) { said->Put(std::move(message)); });
    if (!said->WaitFor(1)) return absl::DeadlineExceededError("no answer");
    return said->All()[0];
  }

  // Plays both sides with the same actions and expects the same answers. Returns the turns that were played.
  int Play(const std::string& environment, const std::string& row, uint64_t seed,
           const std::vector<std::string>& actions) {
    const std::string id = absl::StrCat(environment, "-", ++episodes_);
    auto game = (*EnvironmentRegistry::BuiltIn().Find(environment).value())(row);
    const Said opened = Wait([&](auto done) {
      client_->Open({.id = id, .environment = environment, .row_json = row, .seed = seed, .max_turns = 1000},
                    std::move(done));
    });
    EXPECT_EQ(opened.ok(), game.ok()) << opened.status() << game.status();
    if (!game.ok() || !opened.ok()) return 0;
    EXPECT_EQ(opened->text, "");
    EXPECT_TRUE((*game)->Reset(seed).ok());
    int32_t turn = 0;
    for (const std::string& action : actions) {
      const EnvironmentMessage ours = (*game)->Step(action).value();
      const Said theirs =
          Wait([&](auto done) { client_->Act(id, {.turn = turn + 1, .text = action}, std::move(done)); });
      EXPECT_TRUE(theirs.ok()) << theirs.status();
      if (!theirs.ok()) return turn;
      ++turn;
      EXPECT_EQ(theirs->done, ours.done) << action;
      if (ours.done) {
        EXPECT_EQ(theirs->reward, ours.reward) << action;
        return turn;
      }
      EXPECT_EQ(theirs->text, ours.text) << action;
      EXPECT_EQ(theirs->reward, ours.reward) << action;
    }
    return turn;
  }

  // What the worker has counted.
  v1::DescribeResponse::Calls AskForCalls() const {
    const auto stub =
        v1::EnvironmentService::NewStub(grpc::CreateChannel(address(), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    v1::DescribeResponse described;
    EXPECT_TRUE(stub->Describe(&context, {}, &described).ok());
    return described.calls();
  }

  const testing::TempDir dir_;
  std::unique_ptr<testing::Process> worker_;
  std::shared_ptr<PlayClient> client_;
  int episodes_ = 0;
};

TEST_F(PythonPlayTest, GuessIsTheSameGameOnBothSides) {
  for (int number = 1; number <= 32; ++number) {
    EXPECT_EQ(Play("guess", absl::StrCat(R"({"ground_truth": )", number, "}"), 3,
                   {"16", "", "8 or 24", "0", "33", "-5", "99999999999999999999", "3.0", "#### 7 then 9", "$1,2",
                    "it is .5", "a-4", absl::StrCat("so ", number)}),
              number == 16   ? 1
              : number == 24 ? 3
              : number == 7  ? 9
              : number == 12 ? 10
              : number == 4  ? 12
                             : 13)
        << number;
  }
  // Without a row the number comes of the seed.
  std::vector<std::string> numbers;
  for (int number = 1; number <= 32; ++number) numbers.push_back(absl::StrCat(number));
  for (uint64_t seed : {0ULL, 1ULL, 5ULL, 1ULL << 33, ~0ULL}) {
    EXPECT_EQ(Play("guess", "{}", seed, numbers), static_cast<int>(1 + Philox4x32(seed, 0)[0] % 32));
  }
  Play("guess", R"({"ground_truth": "none"})", 3, {});
}

TEST_F(PythonPlayTest, TheCalculatorIsTheSameOnBothSides) {
  std::vector<std::string> actions = {
      "calc: -3 * (4 + 0.5)",
      "calc: 2 / 6",
      "calc:1/0",
      "calc: (1",
      "calc:",
      "calc: 1 x",
      "calc: 5.",
      "calc: .",
      "calc: 1.2.3",
      "I try\ncalc: 1/8",
      "calc: 1\n\n  ",
      "\t calc: 7 / 1024",
      "calc: 1/3 * 3",
      "calc: 0.1 + 0.2",
      "calc: -0",
      "calc: --5",
      "calc: \xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9 1",
      absl::StrCat("calc: ", std::string(39, '9')),
      absl::StrCat("calc: ", std::string(38, '9'), " * 2"),
      absl::StrCat("calc: ", std::string(80, '('), "1"),
      absl::StrCat("calc: ", std::string(1100, '1'))};
  // Expressions of a seed, well formed and not.
  constexpr char kPieces[] = "0123456789.+-*/() ";
  for (uint64_t i = 0; i < 400; ++i) {
    std::string expression = "calc: ";
    const uint32_t length = 1 + Philox4x32(i, 0)[0] % 14;
    for (uint32_t at = 1; at <= length; ++at) {
      expression += kPieces[Philox4x32(i, at)[0] % (sizeof(kPieces) - 1)];
    }
    actions.push_back(expression);
  }
  actions.push_back("so it is 42");
  EXPECT_EQ(Play("calculator", R"({"ground_truth": "#### 42"})", 1, actions), static_cast<int>(actions.size()));
  for (const char* answer :
       {"42.0", "42", "-42", "4,2", "41", "none", "42 and then 43", "#### 42 and then 43", "0.5", ".5"}) {
    for (const char* row : {R"({"ground_truth": 42})", R"({"ground_truth": "-42"})", R"({"ground_truth": 0.5})"}) {
      EXPECT_EQ(Play("calculator", row, 1, {answer}), 1);
    }
  }
  for (const char* row :
       {"{}", R"({"ground_truth": "none"})", R"({"ground_truth": [1]})", R"({"ground_truth": true})"}) {
    Play("calculator", row, 1, {"1"});
  }
}

TEST_F(PythonPlayTest, EveryCallThatTheRollouterCountsWasStartedThereAndHasEndedOrWasCancelled) {
  constexpr int kEpisodes = 8, kCancelled = 5;
  for (int i = 0; i < kEpisodes; ++i) {
    const std::string id = absl::StrCat("slow-", i);
    ASSERT_TRUE(Wait([&](auto done) {
                  client_->Open({.id = id, .environment = "slow", .row_json = "{}", .max_turns = 10}, std::move(done));
                }).ok());
    ASSERT_TRUE(Wait([&](auto done) { client_->Act(id, {.turn = 1, .text = "go"}, std::move(done)); }).ok());
    if (i < kCancelled) client_->Act(id, {.turn = 2, .text = "sleep"}, [](const Said&) {});
  }
  v1::DescribeResponse::Calls calls = AskForCalls();
  EXPECT_EQ(calls.started() - calls.ended(), kCancelled) << "the tools sleep";
  for (int i = 0; i < kCancelled; ++i) client_->Close(absl::StrCat("slow-", i), "not wanted");
  ASSERT_TRUE(
      testing::Eventually(kTestDeadline, [this] { return client_->counters().cancels_answered == kCancelled; }));
  calls = AskForCalls();
  const rollouter::RemoteEnvironment::Counters ours = client_->counters();
  EXPECT_EQ(calls.started(), ours.opened + ours.turns + ours.cancels);
  EXPECT_EQ(calls.ended(), ours.opened + ours.turns);
  EXPECT_EQ(calls.cancelled(), ours.cancels_answered);
  EXPECT_EQ(calls.started(), calls.ended() + calls.cancelled());
}

}  // namespace
}  // namespace syncopate::rollouterd
