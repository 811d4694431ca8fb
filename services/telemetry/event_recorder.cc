#include "services/telemetry/event_recorder.h"

#include <utility>

#include "services/wire/codec.h"
#include "syncopate/v1/records.pb.h"

namespace syncopate::telemetry {

absl::StatusOr<std::unique_ptr<EventRecorder>> EventRecorder::Open(FileSystem* files, const std::string& run_dir,
                                                                   const std::string& name, const Clock* clock) {
  const std::string path = EventLogPath(run_dir, name);
  SYNCOPATE_RETURN_IF_ERROR(files->CreateDirs(ParentPath(path)));
  SYNCOPATE_ASSIGN_OR_RETURN(auto log, EventLog::Open(files, path));
  return std::unique_ptr<EventRecorder>(new EventRecorder(std::move(log), name, clock));
}

void EventRecorder::Record(const RunEvent& event) {
  v1::Event message;
  message.set_unix_seconds(clock_->UnixSeconds());
  message.set_mono_seconds(absl::ToDoubleSeconds(clock_->Now() - absl::UnixEpoch()));
  message.set_role(name_);
  message.set_kind(event.kind);
  *message.mutable_version() = wire::ToProto(event.version);
  message.set_attempt(event.attempt);
  message.mutable_fields()->insert(event.fields.begin(), event.fields.end());
  log_->Append(message.SerializeAsString());
}

}  // namespace syncopate::telemetry
