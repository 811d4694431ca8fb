#include "services/trainer/sample_recorder.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"

namespace syncopate::trainerd {
namespace {

constexpr int64_t kTokenBytes = sizeof(int32_t) + sizeof(float);  // the id and its log-prob

int64_t CountTokens(const TrajectoryGroup& group) {
  auto tokens = static_cast<int64_t>(group.prompt_ids.size());
  for (const Trajectory& sample : group.samples) tokens += static_cast<int64_t>(sample.tokens.size());
  return tokens;
}

}  // namespace

SampleRecorder::SampleRecorder(const Options& options, std::unique_ptr<trainer::SampleFile> file, const Clock* clock)
    : options_(options), clock_(clock), file_(std::move(file)) {
  Post(0, 0, [this] { file_->Begin(); });
}

int64_t SampleRecorder::lost() const {
  MutexLock lock(&mutex_);
  return skipped_ + lost_lines_;
}

void SampleRecorder::Post(int64_t tokens, int64_t samples, std::function<void()> work) {
  const int64_t bytes = tokens * kTokenBytes;
  {
    MutexLock lock(&mutex_);
    if (waiting_bytes_ > 0 && waiting_bytes_ + bytes > kMostWaitingBytes) {
      skipped_ += samples;
      return;
    }
    waiting_bytes_ += bytes;
  }
  auto task = [this, bytes, work = std::move(work)]() mutable {
    work();
    work = nullptr;  // frees the answers before their room is given back
    MutexLock lock(&mutex_);
    lost_lines_ = file_->lost();
    waiting_bytes_ -= bytes;
  };
  if (worker_.Post(std::move(task))) return;
  MutexLock lock(&mutex_);
  waiting_bytes_ -= bytes;
  skipped_ += samples;
}

void SampleRecorder::RecordStep(const trainer::StepReport& report) {
  int64_t tokens = 0, samples = 0;
  for (const trainer::SharedGroup& group : report.batch) {
    tokens += CountTokens(*group);
    if (options_.training.Takes(group->lease.group)) samples += static_cast<int64_t>(group->samples.size());
  }
  if (samples > 0) Post(tokens, samples, [this, report] { WriteStep(report); });
}

void SampleRecorder::RecordEvaluation(const trainer::EvaluationReport& report) {
  if (report.recorded == nullptr || report.recorded->empty()) return;
  int64_t tokens = 0;
  for (const trainer::EvaluatedAnswer& one : *report.recorded) tokens += static_cast<int64_t>(one.answer.tokens.size());
  Post(tokens, static_cast<int64_t>(report.recorded->size()),
       [this, version = report.version, recorded = report.recorded] { WriteEvaluation(version, *recorded); });
}

void SampleRecorder::RecordDrop(const trainer::DropRecord& drop, const PolicyVersion& at) {
  if (drop.group == nullptr || !options_.training.Takes(drop.lease.group)) return;
  Post(CountTokens(*drop.group), static_cast<int64_t>(drop.group->samples.size()),
       [this, drop, at] { WriteDrop(drop, at); });
}

// What a sample is compared with is the whole batch, though only chosen groups are written.
void SampleRecorder::WriteStep(const trainer::StepReport& report) {
  std::vector<const TrajectoryGroup*> groups;
  for (const trainer::SharedGroup& group : report.batch) groups.push_back(group.get());
  std::vector<std::vector<trainer::SampleResult>> results;
  if (report.supervised) {
    for (const TrajectoryGroup* group : groups) {
      std::vector<trainer::SampleResult>& made = results.emplace_back();
      for (const Trajectory& sample : group->samples) made.push_back(trainer::SupervisedResult(sample));
    }
  } else {
    const bool made_update = report.figures.updates > 0 || report.figures.skipped_updates == 0;
    auto trained = trainer::TrainedResults(groups, options_.loss, report.version.step - 1, made_update);
    if (!trained.ok()) {  // the step itself would have failed
      SYNCOPATE_LOG(kError, "the samples of %s have no advantages: %s", report.version.ToString(),
                    trained.status().ToString());
      return;
    }
    results = *std::move(trained);
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    const TrajectoryGroup& group = *groups[i];
    if (!options_.training.Takes(group.lease.group)) continue;
    const auto origin = report.origins.find(group.lease.group);
    WriteGroup(
        group, origin == report.origins.end() ? trainer::PromptOrigin() : origin->second, results[i],
        {.kind = report.supervised ? "supervised" : "train", .version = report.version, .is_replay = report.is_replay});
  }
}

void SampleRecorder::WriteDrop(const trainer::DropRecord& drop, const PolicyVersion& at) {
  const trainer::SampleResult dropped{.name = trainer::DropReasonName(drop.reason)};
  const std::vector<trainer::SampleResult> results(drop.group->samples.size(), dropped);
  WriteGroup(*drop.group, drop.origin, results, {.kind = "drop", .version = at});
}

void SampleRecorder::WriteGroup(const TrajectoryGroup& group, const trainer::PromptOrigin& origin,
                                const std::vector<trainer::SampleResult>& results, trainer::SampleRecord record) {
  record.lease = group.lease;
  record.rollouter = group.rollouter;
  record.prompt_ids = &group.prompt_ids;
  trainer::AddOrigin(
      origin, [this](const std::vector<int32_t>& ids) { return options_.prompts->Render(ids); }, &record);
  for (size_t i = 0; i < group.samples.size(); ++i) {
    record.sample = static_cast<int32_t>(i);
    record.answer = &group.samples[i];
    record.result = results[i];
    Write(record);
  }
}

void SampleRecorder::WriteEvaluation(const PolicyVersion& version,
                                     const std::vector<trainer::EvaluatedAnswer>& answers) {
  for (const trainer::EvaluatedAnswer& one : answers) {
    trainer::SampleRecord record = {.kind = "eval",
                                    .version = version,
                                    .lease = one.lease,
                                    .sample = one.sample,
                                    .rollouter = one.rollouter,
                                    .set = one.set,
                                    .file = one.prompt->origin.file,
                                    .prompt_ids = &one.prompt->prompt_ids,
                                    .answer = &one.answer,
                                    .result = {.name = "evaluated"}};
    trainer::AddOrigin(
        {one.prompt->task, one.prompt->answer_ids},
        [this](const std::vector<int32_t>& ids) { return options_.prompts->Render(ids); }, &record);
    Write(std::move(record));
  }
}

void SampleRecorder::Write(trainer::SampleRecord record) {
  record.unix_seconds = clock_->UnixSeconds();
  file_->Append(trainer::MakeSampleLine(
      record, [this](const std::vector<int32_t>& ids) { return options_.prompts->Render(ids); }));
}

}  // namespace syncopate::trainerd
