// A live run as a monitoring system sees it: /metrics, health, reflection.

#include <gmock/gmock.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "syncopate/v1/rollout.grpc.pb.h"
#include "syncopate/v1/trainer.grpc.pb.h"
#include "tests/support/run_harness.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing::observability_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Samples = std::map<std::string, double>;  // "name{labels}" -> value

// Sends one message to `method` of a service whose .proto is not compiled here; returns the first response. Both are
// serialized.
absl::StatusOr<std::string> RawCall(const std::string& address, const std::string& method, const std::string& message) {
  SYNCOPATE_ASSIGN_OR_RETURN(auto channel, rpc::MakeChannel(address));
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(rpc::CallDeadline(kPatience));  // every call below ends by then
  grpc::CompletionQueue queue;
  auto done = [&queue] {
    void* tag;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  auto call = stub.PrepareCall(&context, method, &queue);
  grpc::Slice slice(message);
  grpc::ByteBuffer answer;
  grpc::Status status;
  call->StartCall(nullptr);
  bool good = done();
  if (good) call->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
  good = good && done();
  if (good) call->Read(&answer, nullptr);
  good = good && done();
  call->Finish(&status, nullptr);
  done();
  if (!status.ok()) return rpc::FromGrpc(status);
  if (!good) return absl::InternalError(method + " answered nothing");
  std::vector<grpc::Slice> slices;
  answer.Dump(&slices);
  std::string bytes;
  for (const grpc::Slice& one : slices) bytes.append(reinterpret_cast<const char*>(one.begin()), one.size());
  return bytes;
}

absl::StatusOr<Samples> Scrape(const daemon::DaemonEndpoint& daemon) {
  SYNCOPATE_ASSIGN_OR_RETURN(std::string text, HttpGet(daemon.metrics, "/metrics"));
  Samples samples;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    if (line[0] == '#') continue;
    const size_t space = line.rfind(' ');
    double value = 0;
    if (space == absl::string_view::npos || !absl::SimpleAtod(line.substr(space + 1), &value)) {
      return absl::InvalidArgumentError(absl::StrCat("no sample: ", line));
    }
    samples[std::string(line.substr(0, space))] = value;
  }
  return samples;
}

// A run that has made steps and is paused: its figures no longer change.
class ObservabilityTest : public ::testing::Test {
 protected:
  ObservabilityTest() : run_({"run.steps=1000000", "eval.every_steps=4"}) {}

  void SetUp() override {
    auto process = run_.Run();
    ASSERT_THAT(process, IsOk());
    process_ = *std::move(process);
    ASSERT_THAT(run_.AwaitStep(6), IsOk());
    for (const auto& [role, index] : std::vector<std::pair<std::string, int>>{
             {"synchronizer", 0}, {"trainer", 0}, {"rollouter", 0}, {"rollouter", 1}}) {
      auto endpoint = run_.Endpoint(role, index);
      ASSERT_THAT(endpoint, IsOk());
      daemons_[endpoint->Name()] = *endpoint;
    }
    v1::TrainerServicePauseRequest request;
    request.set_request_id("pause");
    ASSERT_THAT(Call<v1::TrainerService>(daemons_["trainer-0"].grpc, &v1::TrainerService::Stub::Pause, request),
                IsOk());
    ASSERT_TRUE(Eventually(kPatience, [&] {
      auto status = TrainerStatus();
      return status.state() == "paused" && status.leased_groups() == 0;
    }));
  }

  v1::TrainerServiceGetStatusResponse TrainerStatus() {
    auto status = Call<v1::TrainerService>(daemons_["trainer-0"].grpc, &v1::TrainerService::Stub::GetStatus, {});
    EXPECT_THAT(status, IsOk());
    return status.ok() ? *status : v1::TrainerServiceGetStatusResponse();
  }
  Samples GetScrape(const std::string& daemon) {
    auto samples = Scrape(daemons_[daemon]);
    EXPECT_THAT(samples, IsOk()) << daemon;
    return samples.ok() ? *samples : Samples();
  }
  void ExpectNames(const std::string& daemon, const std::vector<std::string>& names) {
    const Samples samples = GetScrape(daemon);
    for (const std::string& name : names) EXPECT_TRUE(samples.count(name) == 1) << daemon << " lacks " << name;
    for (const char* name : {"process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds",
                             "process_threads", "process_start_time_seconds"}) {
      EXPECT_TRUE(samples.count(name) == 1) << daemon << " lacks " << name;
    }
    const std::string role = daemon.substr(0, daemon.find('-'));
    EXPECT_EQ(samples.count(absl::StrCat("syncopate_build_info{role=\"", role, "\",version=\"0.1.0\"}")), 1u);
    EXPECT_EQ(samples.count(absl::StrCat("syncopate_policy_version_step{role=\"", role, "\"}")), 1u) << daemon;
    EXPECT_EQ(samples.at(absl::StrCat("syncopate_policy_version_epoch{role=\"", role, "\"}")), 1) << daemon;
  }

  RunHarness run_;
  std::unique_ptr<Process> process_;
  std::map<std::string, daemon::DaemonEndpoint> daemons_;
};

TEST_F(ObservabilityTest, EveryDaemonServesTheNamesOfTheDashboards) {
  ExpectNames(
      "synchronizer-0",
      {"syncopate_weight_sync_duration_seconds_count{phase=\"transfer\",transport=\"grpc\"}",
       "syncopate_weight_sync_duration_seconds_bucket{phase=\"total\",transport=\"grpc\",le=\"0.025\"}",
       "syncopate_weight_sync_bytes_total{kind=\"full\"}", "syncopate_weight_syncs_total{result=\"ok\"}",
       "syncopate_weight_syncs_total{result=\"deadline\"}", "syncopate_weight_sync_last_success_timestamp_seconds"});
  ExpectNames("trainer-0",
              {"syncopate_sample_staleness_steps_bucket{le=\"4\"}", "syncopate_groups_total{outcome=\"trained\"}",
               "syncopate_groups_total{outcome=\"dropped_stale\"}", "syncopate_groups_total{outcome=\"filtered\"}",
               "syncopate_groups_total{outcome=\"failed\"}", "syncopate_groups_total{outcome=\"duplicate\"}",
               "syncopate_queue_groups", "syncopate_leased_groups", "syncopate_staleness_bound_violations_total",
               "syncopate_trainer_phase_seconds_total{phase=\"idle\"}", "syncopate_trained_tokens_total",
               "syncopate_reward_mean", "syncopate_kl", "syncopate_entropy", "syncopate_gradient_norm",
               "syncopate_memory_allocated_bytes", "syncopate_memory_reserved_bytes"});
  for (const char* rollouter : {"rollouter-0", "rollouter-1"}) {
    ExpectNames(
        rollouter,
        {"syncopate_generation_pause_seconds_count", "syncopate_generated_tokens_total",
         "syncopate_rollouter_phase_seconds_total{phase=\"idle\"}", "vllm:num_requests_running{model_name=\"reverse\"}",
         "vllm:num_requests_waiting{model_name=\"reverse\"}", "vllm:kv_cache_usage_perc{model_name=\"reverse\"}"});
  }
}

TEST_F(ObservabilityTest, MetricsAgreeWithWhatTheDaemonsSayOtherwise) {
  const auto step = static_cast<double>(TrainerStatus().version().step());
  // Rollouters generate up to the staleness bound, and the figures follow a moment later.
  EXPECT_TRUE(Eventually(kPatience, [&] {
    const auto status = TrainerStatus();
    const Samples trainer = GetScrape("trainer-0");
    return trainer.at("syncopate_leased_groups") == static_cast<double>(status.leased_groups()) &&
           trainer.at("syncopate_queue_groups") == static_cast<double>(status.queued_groups()) &&
           trainer.at("syncopate_groups_total{outcome=\"trained\"}") == 16 * step;
  }));
  const Samples trainer = GetScrape("trainer-0");
  EXPECT_EQ(trainer.at("syncopate_policy_version_step{role=\"trainer\"}"), step);
  EXPECT_EQ(trainer.at("syncopate_steps_total"), step);
  EXPECT_EQ(trainer.at("syncopate_sample_staleness_steps_count"), 256 * step);
  EXPECT_EQ(trainer.at("syncopate_staleness_bound_violations_total"), 0);
  EXPECT_GT(trainer.at("syncopate_trainer_phase_seconds_total{phase=\"step\"}"), 0);

  for (const char* name : {"rollouter-0", "rollouter-1"}) {
    EXPECT_TRUE(Eventually(kPatience, [&] {
      auto rollouter = Call<v1::RolloutService>(daemons_[name].grpc, &v1::RolloutService::Stub::GetStatus, {});
      const Samples samples = GetScrape(name);
      return rollouter.ok() && samples.at("vllm:num_requests_running{model_name=\"reverse\"}") == 0 &&
             samples.at("syncopate_generated_tokens_total") == static_cast<double>(rollouter->generated_tokens()) &&
             samples.at("syncopate_installs_total") == static_cast<double>(rollouter->installs()) &&
             samples.at("syncopate_generation_pause_seconds_count") == static_cast<double>(rollouter->installs());
    })) << name;
  }

  const Samples synchronizer = GetScrape("synchronizer-0");
  const double syncs = synchronizer.at("syncopate_weight_syncs_total{result=\"ok\"}");
  const std::string total = "syncopate_weight_sync_duration_seconds_count{phase=\"total\",transport=\"grpc\"}";
  EXPECT_EQ(synchronizer.at(total), syncs);
  EXPECT_GT(synchronizer.at("syncopate_weight_sync_bytes_total{kind=\"full\"}"), 0);
  EXPECT_EQ(synchronizer.at("syncopate_members_alive{role=\"rollouter\"}"), 2);
}

TEST_F(ObservabilityTest, OnlyMetricsAreServedOverHttp) {
  for (const auto& [name, daemon] : daemons_) {
    EXPECT_THAT(HttpGet(daemon.metrics, "/"), ::testing::Not(IsOk())) << name;
    EXPECT_THAT(HttpGet(daemon.metrics, "/../etc/passwd"), ::testing::Not(IsOk())) << name;
  }
}

TEST_F(ObservabilityTest, HealthAndReflectionAnswerOnEveryDaemon) {
  const std::map<std::string, std::string> service_of = {{"synchronizer", "syncopate.v1.SynchronizerService"},
                                                         {"trainer", "syncopate.v1.TrainerService"},
                                                         {"rollouter", "syncopate.v1.RolloutService"}};
  const std::string serving("\x08\x01", 2);        // HealthCheckResponse{status: SERVING}
  const std::string list_services("\x3a\x00", 2);  // ServerReflectionRequest{list_services: ""}
  for (const auto& [name, daemon] : daemons_) {
    auto health = RawCall(daemon.grpc, "/grpc.health.v1.Health/Check", "");
    ASSERT_THAT(health, IsOk()) << name;
    EXPECT_EQ(*health, serving) << name;
    auto services =
        RawCall(daemon.grpc, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", list_services);
    ASSERT_THAT(services, IsOk()) << name;
    EXPECT_THAT(*services, AllOf(HasSubstr(service_of.at(daemon.role)), HasSubstr("grpc.health.v1.Health"),
                                 HasSubstr("grpc.channelz.v1.Channelz")))
        << name;
  }
}

}  // namespace
}  // namespace syncopate::testing::observability_test
