#include "services/trainer/run_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <memory>
#include <string>

#include "services/wire/codec.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/status_matchers.h"

namespace syncopate::trainerd {
namespace {

using ::testing::HasSubstr;

// The three objects to which the recorder passes records, over a disk in memory.
class RunRecorderTest : public ::testing::Test {
 protected:
  void Step(int64_t step) {
    trainer::StepReport report;
    report.version = {1, step};
    recorder_.RecordStep(report);
  }
  std::string Metrics() { return prometheus::TextSerializer().Serialize(registry_.Collect()); }
  std::string Lines() { return ReadFile(&disk_, "/metrics.jsonl", 1 << 20).value(); }

  testing::FaultyFileSystem disk_;
  prometheus::Registry registry_;
  std::unique_ptr<trainer::RunReporter> reporter_ = trainer::RunReporter::Open(&disk_, "/metrics.jsonl").value();
  telemetry::TrainerMetrics metrics_{registry_, {}};
  std::unique_ptr<EventRecorder> events_ = EventRecorder::Open(&disk_, "/run", "trainer-0", wire::EncodeEvent).value();
  RunRecorder recorder_{reporter_.get(), &metrics_, events_.get()};
};

TEST_F(RunRecorderTest, AStepIsALineAMetricAndAnObservationForEachSample) {
  trainer::StepReport report;
  report.version = {1, 3};
  report.figures.loss = 0.25;
  report.figures.trained_tokens = 10;
  report.sample_staleness = {0, 1, 1};
  recorder_.RecordStep(report);
  EXPECT_THAT(Lines(), HasSubstr("\"loss\":0.25"));
  EXPECT_THAT(Metrics(), HasSubstr("syncopate_steps_total 1"));
  EXPECT_THAT(Metrics(), HasSubstr("_count 3"));
}

TEST_F(RunRecorderTest, TensorBoardGetsWhatMetricsJsonlDoesUnderTheSameNames) {
  recorder_.SetTensorBoard(trainer::TensorBoardFile::Open(&disk_, "/tensorboard", {.epoch = 1, .step = 2}).value());
  trainer::StepReport report;
  report.version = {1, 3};
  report.figures.reward_parts = {{"format", 0.5}};
  recorder_.RecordStep(report);
  trainer::EvaluationReport evaluation;
  evaluation.version = {1, 3};
  evaluation.reward_mean = 0.5;
  evaluation.figures = {.reward_parts = {{"format", 0.5}},
                        .files = {{"a.jsonl", 1, 1}},
                        .data_sources = {{"gsm8k", 1, 1}},
                        .environments = {{"desk", 1, 1, 8, 2}}};
  recorder_.RecordEvaluation(evaluation);
  const std::string events = ReadFile(&disk_, "/tensorboard/events.out.tfevents.0000000001.syncopate", 1 << 20).value();
  for (const char* tag :
       {"policy/loss", "policy/learning_rate", "reward/reward_min", "data/tokens_so_far", "time/rollouters_idle_ratio",
        "reward_parts/format", "evaluation/reward_mean", "evaluation/response_tokens_max", "evaluation_parts/format",
        "evaluation_files/a.jsonl", "evaluation_data_sources/gsm8k", "evaluation_environments/desk/turns_mean"}) {
    EXPECT_THAT(events, HasSubstr(tag));
  }
  EXPECT_EQ(events.find("evaluation/exact"), std::string::npos);  // the right answers are unknown
  EXPECT_THAT(Lines(), HasSubstr("\"reward_parts\":{\"format\":0.5}"));
  EXPECT_EQ(Lines().find("eval_exact"), std::string::npos);
}

TEST_F(RunRecorderTest, MovesOfAStepStandApartAndWhatDidNotMoveIsExactlyZero) {
  recorder_.SetSendBytes(7);
  trainer::StepReport report;
  report.version = {1, 3};
  trainer::SetMoves({.parameters = {.load_seconds = 0.25, .offload_seconds = 0.5, .bytes = 64}, .cache_flushes = 2},
                    &report.figures);
  trainer::SetMemory({.allocated_bytes = 100, .reserved_bytes = 200, .optimizer_bytes = 40}, &report.figures);
  recorder_.RecordStep(report);
  for (const char* field :
       {"\"parameters_load_seconds\":0.25", "\"parameters_offload_seconds\":0.5", "\"parameters_moved_bytes\":64",
        "\"optimizer_load_seconds\":0.0,", "\"optimizer_offload_seconds\":0.0,", "\"optimizer_moved_bytes\":0,",
        "\"reference_load_seconds\":0.0,", "\"reference_offload_seconds\":0.0,", "\"cache_flushes\":2",
        "\"parameters_device_bytes\":0,", "\"optimizer_device_bytes\":40",
        // The send slots are memory beside the policy's.
        "\"memory_allocated_bytes\":107", "\"memory_reserved_bytes\":207"}) {
    EXPECT_THAT(Lines(), HasSubstr(field));
  }
  recorder_.RecordStep(report);
  EXPECT_THAT(Metrics(), HasSubstr("syncopate_parameters_load_seconds 0.25"));
  EXPECT_THAT(Metrics(), HasSubstr("syncopate_parameters_moved_bytes_total 128"));
  EXPECT_THAT(Metrics(), HasSubstr("syncopate_optimizer_moved_bytes_total 0"));
  EXPECT_THAT(Metrics(), HasSubstr("syncopate_optimizer_load_seconds 0\n"));
}

TEST_F(RunRecorderTest, MemoryThatChangesBetweenStepsIsShownAtOnce) {
  recorder_.SetSendBytes(7);
  Step(1);
  recorder_.RecordMemory({.allocated_bytes = 10, .reserved_bytes = 20, .gradient_bytes = 5});
  EXPECT_THAT(Metrics(), HasSubstr("syncopate_memory_allocated_bytes 17"));
  EXPECT_THAT(Metrics(), HasSubstr("syncopate_memory_reserved_bytes 27"));
  EXPECT_THAT(Metrics(), HasSubstr("syncopate_gradients_device_bytes 5"));
  EXPECT_THAT(Metrics(), HasSubstr("syncopate_steps_total 1"));
}

TEST_F(RunRecorderTest, WhatAFullDiskLosesIsCountedAndNothingEnds) {
  recorder_.SetTensorBoard(trainer::TensorBoardFile::Open(&disk_, "/tensorboard", {.epoch = 1, .step = 0}).value());
  disk_.SetCapacity(0);
  Step(1);
  Step(2);
  EXPECT_THAT(Metrics(), HasSubstr("syncopate_lost_records_total{kind=\"metrics.jsonl\"} 2"));
  EXPECT_THAT(Metrics(), HasSubstr("syncopate_lost_records_total{kind=\"tensorboard\"} 2"));
  EXPECT_THAT(Metrics(), HasSubstr("syncopate_steps_total 2"));
}

TEST_F(RunRecorderTest, RolloutersIdleIsTheShareSinceTheStepBefore) {
  trainer::RolloutRoster::Work work;
  recorder_.SetRolloutWork([&work] { return work; });
  work = {.busy_seconds = 3, .idle_seconds = 1};
  Step(1);
  EXPECT_THAT(Metrics(), HasSubstr("syncopate_rollouters_idle_ratio 0.25"));
  Step(2);  // nothing was recorded meanwhile
  EXPECT_THAT(Metrics(), HasSubstr("syncopate_rollouters_idle_ratio 0.25"));
  work = {.busy_seconds = 4, .idle_seconds = 4};
  Step(3);
  EXPECT_THAT(Metrics(), HasSubstr("syncopate_rollouters_idle_ratio 0.75"));
}

TEST_F(RunRecorderTest, ACheckpointThatCouldNotBeSavedIsCountedAsOne) {
  recorder_.RecordCheckpoint({1, 3}, absl::OkStatus());
  recorder_.RecordCheckpoint({1, 4}, absl::DataLossError("no"));
  EXPECT_THAT(Metrics(), HasSubstr("result=\"ok\"} 1"));
  EXPECT_THAT(Metrics(), HasSubstr("result=\"failed\"} 1"));
  EXPECT_EQ(reporter_->figures().saved_checkpoints, 1);  // the summary shows this number
  EXPECT_EQ(reporter_->figures().failed_checkpoints, 1);
}

TEST_F(RunRecorderTest, PhasesAreCountedUnderTheirNames) {
  recorder_.AddPhase(trainer::LoopPhase::kCheckpoint, 2.5);
  EXPECT_THAT(Metrics(), HasSubstr("phase=\"checkpoint\"} 2.5"));
}

}  // namespace
}  // namespace syncopate::trainerd
