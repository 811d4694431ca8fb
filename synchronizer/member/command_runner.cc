#include "synchronizer/member/command_runner.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace syncopate::member {
namespace {

using synchronizer::SyncReport;
using synchronizer::SyncStage;

int64_t MakeAttempt(const CommandRunner::Command& command) {
  return std::visit([](const auto& one) { return one.attempt; }, command);
}

SyncStage GetStage(const CommandRunner::Command& command) {
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

// Commands are counted by attempt, so that Finish, which overtakes queued commands, knows whether any command of the
// attempt is still to come.
void CommandRunner::Stream::Add(int64_t attempt) {
  MutexLock lock(&mutex);
  ++attempts[attempt].commands;
}

void CommandRunner::Stream::Finish(int64_t attempt) {
  MutexLock lock(&mutex);
  auto found = attempts.find(attempt);
  if (found != attempts.end()) found->second.finished = true;
}

void CommandRunner::Stream::End() {
  MutexLock lock(&mutex);
  ended = true;
}

bool CommandRunner::Stream::Wants(int64_t attempt) {
  MutexLock lock(&mutex);
  return !ended && !attempts.at(attempt).finished;
}

bool CommandRunner::Stream::Done(int64_t attempt) {
  MutexLock lock(&mutex);
  auto found = attempts.find(attempt);
  bool finished = found->second.finished || ended;
  if (--found->second.commands == 0) attempts.erase(found);
  return !finished;
}

std::shared_ptr<CommandRunner::Stream> CommandRunner::Present() {
  MutexLock lock(&mutex_);
  return stream_;
}

void CommandRunner::Begin(Reply reply) {
  MutexLock lock(&mutex_);
  SYNCOPATE_CHECK(stream_ == nullptr);
  stream_ = std::make_shared<Stream>(std::move(reply));
}

void CommandRunner::Run(Command command) {
  std::shared_ptr<Stream> stream = Present();
  if (stream == nullptr) return;
  const int64_t attempt = MakeAttempt(command);
  const SyncStage stage = GetStage(command);
  stream->Add(attempt);
  auto task = [this, stream, command = std::move(command), arrived = clock_->Now()]() mutable {
    Execute(stream, std::move(command), arrived);
  };
  if (thread_.Post(std::move(task))) return;
  stream->Done(attempt);
  stream->reply(NotDone(attempt, stage,
                        Error(absl::StatusCode::kResourceExhausted, "BUSY",
                              "too many commands wait; an earlier one is still under way")));
}

void CommandRunner::Finish(int64_t attempt) {
  std::shared_ptr<Stream> stream = Present();
  if (stream == nullptr) return;
  stream->Finish(attempt);
  participant_->Finish(attempt);
  phases_.Forget(attempt);
}

void CommandRunner::End() {
  std::shared_ptr<Stream> stream;
  {
    MutexLock lock(&mutex_);
    stream.swap(stream_);
  }
  if (stream == nullptr) return;
  stream->End();
  participant_->FinishAll();
  phases_.ForgetAll();
}

void CommandRunner::Stop() {
  End();
  thread_.Stop();
}

void CommandRunner::Execute(const std::shared_ptr<Stream>& stream, Command command, absl::Time arrived) {
  const int64_t attempt = MakeAttempt(command);
  const SyncStage stage = GetStage(command);
  if (!stream->Wants(attempt)) {
    stream->Done(attempt);
    return stream->reply(
        NotDone(attempt, stage,
                Error(absl::StatusCode::kCancelled, "CANCELLED",
                      absl::StrCat("attempt ", attempt, " was over before this command's turn came"))));
  }
  // A Finish during Prepare may have found nothing to finish, so it is repeated. During Transfer or Install, Finish
  // finds what Prepare has begun. A source's Transfer may end after the participant is destroyed, so it gets no
  // pointer.
  SyncParticipant* again = stage == SyncStage::kPrepare ? participant_ : nullptr;
  PhaseEvents* phases = again == nullptr ? nullptr : &phases_;
  CarryOut(command, arrived, [stream, attempt, stage, again, phases](SyncReport report) {
    report.attempt = attempt;
    report.stage = stage;
    if (!stream->Done(attempt) && again != nullptr) {
      again->Finish(attempt);
      phases->Forget(attempt);
    }
    stream->reply(report);
  });
}

void CommandRunner::CarryOut(Command& command, absl::Time arrived, SyncParticipant::Done done) {
  const absl::Time begun = clock_->Now();
  const int64_t attempt = MakeAttempt(command);
  if (auto* prepare = std::get_if<synchronizer::Prepare>(&command)) {
    phases_.Remember(attempt, prepare->version);
    // The deadline counts from the command's arrival.
    prepare->deadline = std::max(prepare->deadline - (begun - arrived), absl::ZeroDuration());
    SyncReport report = participant_->Prepare(*prepare);
    phases_.Record(attempt, "prepare", begun, report);
    done(std::move(report));
  } else if (const auto* transfer = std::get_if<synchronizer::Transfer>(&command)) {
    auto returned = std::make_shared<std::atomic<bool>>(false);
    participant_->Transfer(*transfer, phases_.Watch(attempt, returned, std::move(done)));
    *returned = true;
  } else {
    SyncReport report = participant_->Install(std::get<synchronizer::Install>(command));
    phases_.Record(attempt, "install", begun, report);
    done(std::move(report));
    participant_->WorkAfterReport();
  }
}

}  // namespace syncopate::member
