#include "base/event_recorder.h"

#include <utility>

namespace syncopate {

absl::StatusOr<std::unique_ptr<EventRecorder>> EventRecorder::Open(FileSystem* files, const std::string& run_dir,
                                                                   const std::string& name, EventEncoder encode,
                                                                   const Clock* clock) {
  const std::string path = EventLogPath(run_dir, name);
  SYNCOPATE_RETURN_IF_ERROR(files->CreateDirs(ParentPath(path)));
  SYNCOPATE_ASSIGN_OR_RETURN(auto log, EventLog::Open(files, path));
  return std::unique_ptr<EventRecorder>(new EventRecorder(std::move(log), name, encode, clock));
}

void EventRecorder::Record(const RunEvent& event) {
  const double steady_seconds = absl::ToDoubleSeconds(clock_->Now() - absl::UnixEpoch());
  log_->Append(encode_(name_, clock_->UnixSeconds(), steady_seconds, event));
}

}  // namespace syncopate
