#include "tools/data/worker_tasks.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "base/status.h"
#include "base/strict_json.h"
#include "services/auth/transport_security.h"
#include "services/rpc/channel.h"
#include "syncopate/v1/environment.grpc.pb.h"

namespace syncopate::data {
namespace {

// One line of the file. The JSON is written anew, so that a row never contains a line break.
absl::StatusOr<std::string> MakeLine(const v1::EnvironmentTask& task, int64_t max_bytes) {
  const auto bad = [&task](absl::string_view what) {
    return Error(absl::StatusCode::kDataLoss, "BAD_TASK", absl::StrCat("the row of task '", task.id(), "' ", what));
  };
  absl::StatusOr<nlohmann::json> row = ParseStrictJson(task.row_json(), {.max_bytes = max_bytes});
  if (!row.ok()) return bad(absl::StrCat("cannot be read: ", row.status().message()));
  if (!row->is_object()) return bad("is no JSON object");
  absl::StatusOr<std::string> line = DumpJson(*row);
  if (!line.ok()) return bad("is not UTF-8");
  return *line + "\n";
}

absl::StatusOr<int64_t> AppendTasks(const WorkerTasksRequest& request, AppendFile* file) {
  SYNCOPATE_ASSIGN_OR_RETURN(const auto tokens,
                             auth::TransportSecurity::Load({.role = "trainer", .token_file = request.token_file}));
  SYNCOPATE_ASSIGN_OR_RETURN(
      auto channel,
      rpc::MakeChannel(request.worker, {.max_receive_bytes = 2 * request.max_row_bytes, .security = tokens}));
  const auto stub = v1::EnvironmentService::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(rpc::CallDeadline(request.timeout));
  v1::ListTasksRequest wanted;
  wanted.set_environment(request.list);
  const auto stream = stub->ListTasks(&context, wanted);
  v1::ListTasksResponse page;
  int64_t rows = 0;
  absl::Status status;
  while (status.ok() && stream->Read(&page)) {
    for (const v1::EnvironmentTask& task : page.tasks()) {
      absl::StatusOr<std::string> line = MakeLine(task, request.max_row_bytes);
      status = line.ok() ? file->Append(*line) : line.status();
      if (!status.ok()) break;
      ++rows;
    }
  }
  if (!status.ok()) context.TryCancel();
  const absl::Status ended = rpc::FromGrpc(stream->Finish());
  SYNCOPATE_RETURN_IF_ERROR(status);
  SYNCOPATE_RETURN_IF_ERROR(Annotate(ended, absl::StrCat("the worker at ", request.worker)));
  if (rows == 0) {
    return Error(absl::StatusCode::kFailedPrecondition, "NO_TASKS",
                 absl::StrCat("the list ", request.list, " is empty"));
  }
  SYNCOPATE_RETURN_IF_ERROR(file->Sync());
  return rows;
}

}  // namespace

absl::StatusOr<int64_t> WriteWorkerTasks(const WorkerTasksRequest& request) {
  FileSystem* const files = FileSystem::Real();
  if (!absl::IsNotFound(files->FileBytes(request.output).status())) {
    return Error(absl::StatusCode::kAlreadyExists, "FILE_TAKEN",
                 absl::StrCat(request.output, " is there already; remove it, or name another file"));
  }
  const std::string partial = request.output + ".partial";
  SYNCOPATE_RETURN_IF_ERROR(files->RemoveTree(partial));
  SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<AppendFile> file,
                             files->OpenForAppend(partial, FileSystem::OpenMode::kCreateNew));
  absl::StatusOr<int64_t> rows = AppendTasks(request, file.get());
  file.reset();
  absl::Status status = rows.status();
  if (status.ok()) status = files->Rename(partial, request.output);
  if (status.ok()) status = files->SyncDir(ParentPath(request.output));
  if (status.ok()) return rows;
  (void)files->RemoveTree(partial);  // the first error is returned
  return status;
}

}  // namespace syncopate::data
