#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

#include "services/rpc/channel.h"
#include "services/rpc/server.h"
#include "services/rpc/unary.h"
#include "services/telemetry/card_metrics.h"
#include "services/telemetry/grpc_metrics.h"
#include "services/telemetry/rollout_metrics.h"
#include "services/telemetry/sync_metrics.h"
#include "services/telemetry/trainer_metrics.h"
#include "syncopate/v1/rollout.grpc.pb.h"

namespace syncopate::telemetry {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Text(const prometheus::Collectable& source) {
  return prometheus::TextSerializer().Serialize(source.Collect());
}

TEST(SyncMetricsTest, SeedsEveryLabelWithZero) {
  prometheus::Registry registry;
  SyncMetrics metrics(registry);
  std::string text = Text(registry);
  for (const char* phase : {"stage", "prepare", "transfer", "verify", "install", "total"}) {
    for (const char* transport : {"inproc", "ipc", "nccl", "grpc"}) {
      EXPECT_THAT(text, HasSubstr(absl::StrCat("syncopate_weight_sync_duration_seconds_count{phase=\"", phase,
                                               "\",transport=\"", transport, "\"} 0\n")));
    }
  }
  EXPECT_THAT(text, HasSubstr("syncopate_weight_syncs_total{result=\"superseded\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("syncopate_weight_syncs_total{result=\"ok\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("syncopate_weight_syncs_total{result=\"failed\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("syncopate_weight_sync_bytes_total{kind=\"full\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("syncopate_weight_sync_last_success_timestamp_seconds 0\n"));
}

TEST(SyncMetricsTest, RecordsPhasesThatRanAndNoOthers) {
  prometheus::Registry registry;
  SyncMetrics metrics(registry);
  metrics.Record({.transport = "grpc",
                  .result = "ok",
                  .seconds = {.transfer = 0.004, .total = 0.02},
                  .bytes = {.full = 1000, .lora = 24, .mapped = 7},
                  .ended_unix_seconds = 1234});
  std::string text = Text(registry);
  auto count = [&text](const char* phase, int n) {
    EXPECT_THAT(text, HasSubstr(absl::StrCat("syncopate_weight_sync_duration_seconds_count{phase=\"", phase,
                                             "\",transport=\"grpc\"} ", n, "\n")));
  };
  count("transfer", 1);
  count("total", 1);
  count("verify", 0);
  count("install", 0);
  EXPECT_THAT(text, HasSubstr("phase=\"transfer\",transport=\"grpc\",le=\"0.0025\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("phase=\"transfer\",transport=\"grpc\",le=\"0.005\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("syncopate_weight_sync_bytes_total{kind=\"full\"} 1000\n"));
  EXPECT_THAT(text, HasSubstr("syncopate_weight_sync_bytes_total{kind=\"lora\"} 24\n"));
  EXPECT_THAT(text, HasSubstr("syncopate_weight_sync_bytes_total{kind=\"mapped\"} 7\n"));
  EXPECT_THAT(text, HasSubstr("syncopate_weight_sync_last_success_timestamp_seconds 1234\n"));
}

TEST(SyncMetricsTest, KeepsReasonsOfStrangersOutOfTheLabels) {
  prometheus::Registry registry;
  SyncMetrics metrics(registry);
  metrics.Record({.transport = "carrier_pigeon", .result = "DEADLINE"});
  metrics.Record({.transport = "grpc", .result = "EVIL_" + std::string(100, 'x')});
  std::string text = Text(registry);
  EXPECT_THAT(text, HasSubstr("syncopate_weight_syncs_total{result=\"deadline\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("syncopate_weight_syncs_total{result=\"failed\"} 1\n"));
  EXPECT_THAT(text, Not(HasSubstr("evil")));
  EXPECT_THAT(text, Not(HasSubstr("pigeon")));
}

TEST(CardCollectorTest, ShowsTheOwnersOfOneReadingByNameAndTheyAddUpToWhatTheDriverCounts) {
  int64_t used = 5000;
  const daemon::CardAccount account([&used] { return daemon::CardReading{8000, used}; });
  CardCollector card;
  card.Update(account, {{"weights", 3000}, {"keys and values", 500}});
  used = 7000;  // shown at the next Update()
  const std::string text = Text(card);
  EXPECT_THAT(text, HasSubstr("syncopate_card_memory_bytes{owner=\"weights\"} 3000\n"));
  EXPECT_THAT(text, HasSubstr("syncopate_card_memory_bytes{owner=\"keys and values\"} 500\n"));
  EXPECT_THAT(text, HasSubstr("syncopate_card_memory_bytes{owner=\"context and libraries\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("syncopate_card_memory_bytes{owner=\"others\"} 1500\n"));
}

TEST(CardCollectorTest, ShowsNothingBeforeItsFirstUpdateNorWhileTheDriverDoesNotAnswer) {
  absl::Status failure;
  const daemon::CardAccount account([&failure]() -> absl::StatusOr<daemon::CardReading> {
    if (!failure.ok()) return failure;
    return daemon::CardReading{8000, 5000};
  });
  CardCollector card;
  EXPECT_EQ(Text(card), "");
  card.Update(account, {});
  EXPECT_THAT(Text(card), HasSubstr("owner=\"others\"} 5000\n"));
  failure = absl::UnavailableError("no answer");
  card.Update(account, {});
  EXPECT_EQ(Text(card), "");
}

TEST(TrainerMetricsTest, ExposesTheNamesOfTheDashboards) {
  prometheus::Registry registry;
  TrainerMetrics metrics(registry, {.max_staleness = 2, .outstanding_groups = 32});
  metrics.SetGroups("trained", 9);
  metrics.SetGroups("trained", 16);
  metrics.SetGroups("trained", 12);
  metrics.ObserveStaleness(1);
  metrics.ObserveStaleness(2);
  metrics.AddPhase("idle", 1.5);
  trainer::StepFigures step;
  step.reward_mean = 0.5;
  step.reward_std = 0.125;
  step.zero_variance_ratio = 0.0625;
  step.loss = -0.25;
  step.gradient_norm = 2;
  step.entropy = 1;
  step.skipped_updates = 2;
  step.clip_ratio = 0.75;
  step.kl = 0.01;
  step.trained_tokens = 80;
  metrics.RecordStep({2, 7}, step, {0.25, 0.5});
  metrics.RecordEvaluation(0.9375, 0.875, 0.96875);
  metrics.SetLearningAlarms({"no_signal"});
  metrics.RecordCheckpoint(true, 1234);
  metrics.RecordCheckpoint(false, 5678);
  metrics.SetQueue(3, 4);
  metrics.SetPublishLag(5);
  metrics.SetSizing({.steps_per_second = 1.5,
                     .steps_per_second_one_more = 1.75,
                     .steps_per_second_one_fewer = 1.25,
                     .steps_per_second_most = 2,
                     .useful_rollouters = 6,
                     .target_staleness = 2.5,
                     .max_staleness = 9,
                     .advised_rollouters = 8,
                     .advised_steps_per_second = 1.875});
  trainer::StepFigures memory;
  trainer::SetMemory({.allocated_bytes = 100, .reserved_bytes = 200}, &memory);
  metrics.ShowMemory(memory);
  std::string text = Text(registry);
  for (const char* line : {"syncopate_groups_total{outcome=\"trained\"} 16\n",
                           "syncopate_groups_total{outcome=\"duplicate\"} 0\n",
                           "syncopate_sample_staleness_steps_bucket{le=\"1\"} 1\n",
                           "syncopate_sample_staleness_steps_bucket{le=\"2\"} 2\n",
                           "syncopate_samples_at_staleness_bound_total 1\n",
                           "syncopate_staleness_bound_steps 2\n",
                           "syncopate_outstanding_groups_limit 32\n",
                           "syncopate_loss -0.25\n",
                           "syncopate_reward_std 0.125\n",
                           "syncopate_clip_ratio 0.75\n",
                           "syncopate_zero_variance_ratio 0.0625\n",
                           "syncopate_mismatch_k3{age=\"1\"} 0.5\n",
                           "syncopate_mismatch_k3{age=\"8+\"} 0\n",
                           "syncopate_eval_exact_ratio 0.875\n",
                           "syncopate_eval_reward_mean 0.9375\n",
                           "syncopate_eval_best_reward_mean 0.96875\n",
                           "syncopate_learning_alarm{kind=\"no_signal\"} 1\n",
                           "syncopate_learning_alarm{kind=\"entropy\"} 0\n",
                           "syncopate_checkpoints_total{result=\"ok\"} 1\n",
                           "syncopate_checkpoints_total{result=\"failed\"} 1\n",
                           "syncopate_checkpoint_last_success_timestamp_seconds 1234\n",
                           "syncopate_staleness_bound_violations_total 0\n",
                           "syncopate_trainer_phase_seconds_total{phase=\"idle\"} 1.5\n",
                           "syncopate_trainer_phase_seconds_total{phase=\"step\"} 0\n",
                           "syncopate_queue_groups 3\n",
                           "syncopate_leased_groups 4\n",
                           "syncopate_publish_lag_steps_max 5\n",
                           "syncopate_useful_rollouters 6\n",
                           "syncopate_advised_rollouters 8\n",
                           "syncopate_advised_target_staleness_steps 2.5\n",
                           "syncopate_advised_max_staleness_steps 9\n",
                           "syncopate_predicted_steps_per_second{rollouters=\"present\"} 1.5\n",
                           "syncopate_predicted_steps_per_second{rollouters=\"one_fewer\"} 1.25\n",
                           "syncopate_predicted_steps_per_second{rollouters=\"one_more\"} 1.75\n",
                           "syncopate_advised_steps_per_second 1.875\n",
                           "syncopate_trainer_steps_per_second 2\n",
                           "syncopate_policy_version_step{role=\"trainer\"} 7\n",
                           "syncopate_policy_version_epoch{role=\"trainer\"} 2\n",
                           "syncopate_reward_mean 0.5\n",
                           "syncopate_trained_tokens_total 80\n",
                           "syncopate_skipped_updates_total 2\n",
                           "syncopate_memory_allocated_bytes 100\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(RolloutMetricsTest, ExposesWhatTheEndpointHasDone) {
  EndpointCollector collector([] {
    return EndpointFigures{.answered = 5,
                           .refused = 4,
                           .busy = 3,
                           .failed = 2,
                           .left = 1,
                           .under_way = 6,
                           .prompt_tokens = 70,
                           .completion_tokens = 80,
                           .time_to_first_token = {{0.5, 1}, {3, 2, 1}, 4.5}};
  });
  const std::string text = Text(collector);
  for (const char* line :
       {"# TYPE syncopate_endpoint_requests_total counter\n", "syncopate_endpoint_requests_total{result=\"ok\"} 5\n",
        "syncopate_endpoint_requests_total{result=\"refused\"} 4\n",
        "syncopate_endpoint_requests_total{result=\"busy\"} 3\n",
        "syncopate_endpoint_requests_total{result=\"failed\"} 2\n",
        "syncopate_endpoint_requests_total{result=\"left\"} 1\n", "syncopate_endpoint_requests_under_way 6\n",
        "syncopate_endpoint_tokens_total{kind=\"prompt\"} 70\n",
        "syncopate_endpoint_tokens_total{kind=\"completion\"} 80\n",
        "syncopate_endpoint_time_to_first_token_seconds_bucket{le=\"1\"} 5\n",
        "syncopate_endpoint_time_to_first_token_seconds_count 6\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(RolloutMetricsTest, ExposesVllmsNamesAndTheIdleShare) {
  RolloutCollector collector("reverse", [] {
    return RolloutFigures{.serving = {1, 9},
                          .running_sequences = 5,
                          .waiting_sequences = 6,
                          .parked_sequences = 7,
                          .kv_usage = 0.25,
                          .kv_bytes = 1000,
                          .host_kv_usage = 0.5,
                          .host_kv_bytes = 200,
                          .lent_bytes = 300,
                          .lendings = 31,
                          .lent_seconds = 1.5,
                          .moved_blocks = 32,
                          .generated_tokens = 77,
                          .prompt_tokens = 50,
                          .prefix_tokens = 20,
                          .preemptions = 4,
                          .swaps = 3,
                          .yielded_sequences = 9,
                          .yielded_swaps = 7,
                          .time_to_first_token = {{0.5, 1}, {3, 2, 1}, 4.5},
                          .time_per_output_token = {{0.25}, {60, 8}, 2},
                          .finished_by_stop = 9,
                          .finished_by_length = 8,
                          .turns_answered = 12,
                          .busy_seconds = 3,
                          .idle_seconds = 2};
  });
  std::string text = Text(collector);
  for (const char* line : {"vllm:num_requests_running{model_name=\"reverse\"} 5\n",
                           "vllm:num_requests_waiting{model_name=\"reverse\"} 6\n",
                           "vllm:kv_cache_usage_perc{model_name=\"reverse\"} 0.25\n",
                           "# TYPE vllm:prompt_tokens_total counter\n",
                           "vllm:prompt_tokens_total{model_name=\"reverse\"} 50\n",
                           "vllm:generation_tokens_total{model_name=\"reverse\"} 77\n",
                           "vllm:prefix_cache_queries_total{model_name=\"reverse\"} 50\n",
                           "vllm:prefix_cache_hits_total{model_name=\"reverse\"} 20\n",
                           "vllm:num_preemptions_total{model_name=\"reverse\"} 4\n",
                           "syncopate_preemptions_total{kind=\"swap\"} 3\n",
                           "syncopate_preemptions_total{kind=\"recompute\"} 1\n",
                           "syncopate_yielded_sequences_total{kind=\"swap\"} 7\n",
                           "syncopate_yielded_sequences_total{kind=\"recompute\"} 2\n",
                           "syncopate_host_kv_usage_ratio 0.5\n",
                           "syncopate_lent_kv_bytes 300\n",
                           "# TYPE syncopate_kv_lendings_total counter\n",
                           "syncopate_kv_lendings_total 31\n",
                           "syncopate_kv_lent_seconds_total 1.5\n",
                           "syncopate_kv_moved_blocks_total 32\n",
                           "syncopate_parked_sequences 7\n",
                           "syncopate_environment_events_total{kind=\"turn\"} 12\n",
                           "syncopate_rollouter_memory_bytes{kind=\"kv_cache\"} 1000\n",
                           "syncopate_rollouter_memory_bytes{kind=\"host_kv_cache\"} 200\n",
                           "# TYPE vllm:time_to_first_token_seconds histogram\n",
                           "vllm:time_to_first_token_seconds_bucket{model_name=\"reverse\",le=\"0.5\"} 3\n",
                           "vllm:time_to_first_token_seconds_bucket{model_name=\"reverse\",le=\"1\"} 5\n",
                           "vllm:time_to_first_token_seconds_bucket{model_name=\"reverse\",le=\"+Inf\"} 6\n",
                           "vllm:time_to_first_token_seconds_count{model_name=\"reverse\"} 6\n",
                           "vllm:time_to_first_token_seconds_sum{model_name=\"reverse\"} 4.5\n",
                           "vllm:time_per_output_token_seconds_count{model_name=\"reverse\"} 68\n",
                           "vllm:request_success_total{model_name=\"reverse\",finished_reason=\"stop\"} 9\n",
                           "vllm:request_success_total{model_name=\"reverse\",finished_reason=\"length\"} 8\n",
                           "vllm:request_success_total{model_name=\"reverse\",finished_reason=\"abort\"} 0\n",
                           "syncopate_rollouter_phase_seconds_total{phase=\"idle\"} 2\n",
                           "syncopate_rollouter_phase_seconds_total{phase=\"decode\"} 3\n",
                           "# TYPE syncopate_rollouter_phase_seconds_total counter\n",
                           "syncopate_policy_version_step{role=\"rollouter\"} 9\n",
                           "syncopate_generated_tokens_total 77\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  prometheus::Registry registry;
  InstallMetrics(registry).ObservePause(0.0002);
  EXPECT_THAT(Text(registry), HasSubstr("syncopate_generation_pause_seconds_count 1\n"));
}

class ModeService final : public v1::RolloutService::CallbackService {
  grpc::ServerUnaryReactor* RolloutMode(grpc::CallbackServerContext* context,
                                        const v1::RolloutServiceRolloutModeRequest*,
                                        v1::RolloutServiceRolloutModeResponse*) override {
    return rpc::Reply(context, absl::OkStatus());
  }
  grpc::ServerUnaryReactor* Pause(grpc::CallbackServerContext* context, const v1::RolloutServicePauseRequest*,
                                  v1::RolloutServicePauseResponse*) override {
    return rpc::Reply(context, absl::FailedPreconditionError("no"));
  }
};

TEST(GrpcServerMetricsTest, CountsCallsByMethodAndCode) {
  prometheus::Registry registry;
  GrpcServerMetrics metrics(registry, {"syncopate.v1.RolloutService"});
  ModeService service;
  rpc::Server::Options options;
  options.interceptors = {metrics.InterceptorFactory()};
  auto server = rpc::Server::Start(options, {&service}).value();
  auto stub = v1::RolloutService::NewStub(rpc::MakeChannel(server->address()).value());
  using Stub = v1::RolloutService::Stub;
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(
        rpc::CallUnary(stub.get(), &Stub::RolloutMode, v1::RolloutServiceRolloutModeRequest(), absl::Seconds(20)).ok());
  }
  EXPECT_FALSE(rpc::CallUnary(stub.get(), &Stub::Pause, v1::RolloutServicePauseRequest(), absl::Seconds(20)).ok());
  server->Stop(absl::Seconds(5));
  std::string text = Text(registry);
  auto labels = [](const char* method, const char* type) {
    return absl::StrCat("grpc_method=\"", method, "\",grpc_service=\"syncopate.v1.RolloutService\",grpc_type=\"", type,
                        "\"");
  };
  EXPECT_THAT(text, HasSubstr(absl::StrCat("grpc_server_started_total{", labels("RolloutMode", "unary"), "} 3\n")));
  EXPECT_THAT(text, HasSubstr(absl::StrCat("grpc_server_handled_total{grpc_code=\"OK\",",
                                           labels("RolloutMode", "unary"), "} 3\n")));
  EXPECT_THAT(text, HasSubstr(absl::StrCat("grpc_server_handled_total{grpc_code=\"FailedPrecondition\",",
                                           labels("Pause", "unary"), "} 1\n")));
  EXPECT_THAT(
      text, HasSubstr(absl::StrCat("grpc_server_started_total{", labels("GenerateStream", "server_stream"), "} 0\n")));
}

}  // namespace
}  // namespace syncopate::telemetry
