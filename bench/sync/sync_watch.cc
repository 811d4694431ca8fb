#include "bench/sync/sync_watch.h"

#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "services/rpc/channel.h"
#include "synchronizer/sync_outcome.h"

namespace syncopate::bench {
namespace {

// More than a benchmark makes, so that no record is missed between two streams.
constexpr int kPast = 1000;  // records that a new stream repeats
constexpr absl::Duration kBackoff = absl::Milliseconds(50);

// The record as an event, with the field names that `syncopate ctl syncs --json` prints.
nlohmann::json ToJson(const v1::SyncRecord& record) {
  nlohmann::json seconds = nlohmann::json::object();
  for (const auto& [phase, value] : record.seconds()) seconds[phase] = value;
  return {{"attempt", record.attempt()},
          {"epoch", record.version().epoch()},
          {"step", record.version().step()},
          {"replica", record.replica_id()},
          {"transport", record.transport()},
          {"transport_reason", record.transport_reason()},
          {"result", record.result()},
          {"detail", record.detail()},
          {"bytes", record.bytes()},
          {"seconds", std::move(seconds)},
          {"pause_seconds", record.pause_seconds()},
          {"ended_unix_seconds", record.ended_unix_seconds()}};
}

}  // namespace

absl::StatusOr<std::unique_ptr<SyncWatch>> SyncWatch::Start(const std::string& synchronizer, EventQueue* events) {
  SYNCOPATE_ASSIGN_OR_RETURN(auto channel, rpc::MakeChannel(synchronizer));
  return std::unique_ptr<SyncWatch>(new SyncWatch(std::move(channel), events));
}

SyncWatch::SyncWatch(std::shared_ptr<grpc::Channel> channel, EventQueue* events)
    // The thread is the last member, so it starts when all members that it uses exist.
    : stub_(v1::SynchronizerService::NewStub(std::move(channel))), events_(events), thread_([this] { Run(); }) {}

SyncWatch::~SyncWatch() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    // Read() blocks until the next sync, which may never come.
    if (call_ != nullptr) call_->TryCancel();
  }
  thread_.join();
}

void SyncWatch::Run() {
  while (true) {
    // The synchronizer may be killed on purpose (--kill): the stream ends, and is opened again until the watch itself
    // ends.
    ReadStream();
    MutexLock lock(&mutex_);
    if (mutex_.AwaitWithTimeout(Condition(&stopping_), kBackoff)) return;
  }
}

void SyncWatch::ReadStream() {
  grpc::ClientContext context;
  {
    MutexLock lock(&mutex_);
    if (stopping_) return;
    call_ = &context;
  }
  v1::WatchSyncsRequest request;
  // The stream gives past records first, then new ones: a new stream repeats the records of the previous one, and
  // `seen_` drops them.
  request.set_last(kPast);
  request.set_follow(true);
  auto reader = stub_->WatchSyncs(&context, request);
  v1::WatchSyncsResponse response;
  while (reader->Read(&response)) {
    const v1::SyncRecord& record = response.record();
    // A rehearsal moves no weights: it would count as the fastest sync.
    if (synchronizer::ClassifySyncResult(record.result()) == synchronizer::SyncOutcome::kRehearsed) continue;
    if (!seen_.emplace(record.attempt(), record.replica_id()).second) continue;
    events_->Put({"syncs", "sync", ToJson(record), Clock::Real()->Now()});
  }
  {
    MutexLock lock(&mutex_);
    call_ = nullptr;
  }
  reader->Finish();  // the reason does not matter: the stream is opened again
}

}  // namespace syncopate::bench
