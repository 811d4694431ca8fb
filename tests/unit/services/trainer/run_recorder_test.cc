#include "services/trainer/run_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <memory>
#include <string>

#include "tests/support/faulty_file_system.h"
#include "tests/support/status_matchers.h"

namespace syncopate::trainerd {
namespace {

using ::testing::HasSubstr;

// The three that it hands things on to, over a disk in memory.
class RunRecorderTest : public ::testing::Test {
 protected:
  std::string Metrics() { return prometheus::TextSerializer().Serialize(registry_.Collect()); }
  std::string Lines() { return ReadFile(&disk_, "/metrics.jsonl", 1 << 20).value(); }

  testing::FaultyFileSystem disk_;
  prometheus::Registry registry_;
  std::unique_ptr<RunReporter> reporter_ = RunReporter::Open(&disk_, "/metrics.jsonl").value();
  telemetry::TrainerMetrics metrics_{registry_, {}};
  std::unique_ptr<telemetry::EventRecorder> events_ =
      telemetry::EventRecorder::Open(&disk_, "/run", "trainer-0").value();
  RunRecorder recorder_{reporter_.get(), &metrics_, events_.get()};
};

TEST_F(RunRecorderTest, AStepIsALineAMetricAndAnObservationForEachSample) {
  trainer::StepReport report;
  report.version = {1, 3};
  report.metrics.loss = 0.25;
  report.metrics.tokens = 10;
  report.sample_staleness = {0, 1, 1};
  recorder_.RecordStep(report);
  EXPECT_THAT(Lines(), HasSubstr("\"loss\":0.25"));
  EXPECT_THAT(Metrics(), HasSubstr("syncopate_steps_total 1"));
  EXPECT_THAT(Metrics(), HasSubstr("_count 3"));
}

TEST_F(RunRecorderTest, ACheckpointThatCouldNotBeSavedIsCountedAsOne) {
  recorder_.RecordCheckpoint({1, 3}, absl::OkStatus());
  recorder_.RecordCheckpoint({1, 4}, absl::DataLossError("no"));
  EXPECT_THAT(Metrics(), HasSubstr("result=\"ok\"} 1"));
  EXPECT_THAT(Metrics(), HasSubstr("result=\"failed\"} 1"));
}

TEST_F(RunRecorderTest, PhasesAreCountedUnderTheirNames) {
  recorder_.AddPhase(trainer::LoopPhase::kCheckpoint, 2.5);
  EXPECT_THAT(Metrics(), HasSubstr("phase=\"checkpoint\"} 2.5"));
}

}  // namespace
}  // namespace syncopate::trainerd
