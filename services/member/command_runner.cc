#include "services/member/command_runner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace syncopate::services {
namespace {

using synchronizer::SyncReport;
using synchronizer::SyncStage;

int64_t AttemptOf(const CommandRunner::Command& command) {
  return std::visit([](const auto& one) { return one.attempt; }, command);
}

SyncStage StageOf(const CommandRunner::Command& command) {
  if (std::holds_alternative<synchronizer::Prepare>(command)) return SyncStage::kPrepare;
  return std::holds_alternative<synchronizer::Transfer>(command) ? SyncStage::kTransfer : SyncStage::kInstall;
}

// The report of a command that was not carried out.
SyncReport NotDone(int64_t attempt, SyncStage stage, absl::Status why) {
  SyncReport report;
  report.attempt = attempt;
  report.stage = stage;
  report.status = std::move(why);
  return report;
}

}  // namespace

void CommandRunner::Begin(Reply reply) {
  MutexLock lock(&mutex_);
  SYNCOPATE_CHECK(stream_ == nullptr);
  stream_ = std::make_shared<Stream>();
  stream_->reply = std::move(reply);
}

void CommandRunner::Run(Command command) {
  std::shared_ptr<Stream> stream;
  const int64_t attempt = AttemptOf(command);
  const SyncStage stage = StageOf(command);
  {
    MutexLock lock(&mutex_);
    if (stream_ == nullptr) return;
    stream = stream_;
    ++stream->attempts[attempt].commands;
  }
  auto task = [this, stream, command = std::move(command), arrived = clock_->Now()]() mutable {
    Execute(stream, std::move(command), arrived);
  };
  if (thread_.Post(std::move(task))) return;
  Done(*stream, attempt);
  stream->reply(NotDone(attempt, stage,
                        Error(absl::StatusCode::kResourceExhausted, "BUSY",
                              "too many commands wait; an earlier one is still under way")));
}

void CommandRunner::Finish(int64_t attempt) {
  {
    MutexLock lock(&mutex_);
    if (stream_ == nullptr) return;
    auto found = stream_->attempts.find(attempt);
    if (found != stream_->attempts.end()) found->second.finished = true;
  }
  participant_->Finish(attempt);
}

void CommandRunner::End() {
  {
    MutexLock lock(&mutex_);
    if (stream_ == nullptr) return;
    stream_->ended = true;
    stream_ = nullptr;
  }
  participant_->FinishAll();
}

void CommandRunner::Stop() {
  End();
  thread_.Stop();
}

void CommandRunner::Execute(const std::shared_ptr<Stream>& stream, Command command, absl::Time arrived) {
  const int64_t attempt = AttemptOf(command);
  SyncReport report;
  if (Wanted(*stream, attempt)) {
    report = CarryOut(command, arrived);
  } else {
    report = NotDone(attempt, StageOf(command),
                     Error(absl::StatusCode::kCancelled, "CANCELLED",
                           absl::StrCat("attempt ", attempt, " was over before this command's turn came")));
  }
  // A Finish that came while a Prepare was under way may have found nothing to finish.
  if (!Done(*stream, attempt)) participant_->Finish(attempt);
  stream->reply(report);
}

SyncReport CommandRunner::CarryOut(Command& command, absl::Time arrived) {
  SyncReport report;
  if (auto* prepare = std::get_if<synchronizer::Prepare>(&command)) {
    // The deadline counts from the command's arrival.
    prepare->deadline = std::max(prepare->deadline - (clock_->Now() - arrived), absl::ZeroDuration());
    report = participant_->Prepare(*prepare);
  } else if (const auto* transfer = std::get_if<synchronizer::Transfer>(&command)) {
    report = participant_->Transfer(*transfer);
  } else {
    report = participant_->Install(std::get<synchronizer::Install>(command));
  }
  report.attempt = AttemptOf(command);
  report.stage = StageOf(command);
  return report;
}

bool CommandRunner::Wanted(const Stream& stream, int64_t attempt) {
  MutexLock lock(&mutex_);
  return !stream.ended && !stream.attempts.at(attempt).finished;
}

bool CommandRunner::Done(Stream& stream, int64_t attempt) {
  MutexLock lock(&mutex_);
  auto found = stream.attempts.find(attempt);
  bool finished = found->second.finished || stream.ended;
  if (--found->second.commands == 0) stream.attempts.erase(found);
  return !finished;
}

}  // namespace syncopate::services
