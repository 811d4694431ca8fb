#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "model/model_export.h"
#include "trainer/checkpoint/export_store.h"
#include "trainer/checkpoint/rank_saves.h"
#include "trainer/checkpoint/save_thread.h"
#include "trainer/step/policy.h"

namespace syncopate::trainer {

// Exports of a run that goes on: copies the weights between two steps and writes the copy while further steps are made,
// one export at a time. Each rank copies and writes its shard; ranks exchange nothing. Called by the step thread: on
// the CPU it waits for the copy, on a GPU hardly at all (Policy::TakeWeights). A thread of its own writes, so that a
// checkpoint need not wait for an export.
class ExportWriter {
 public:
  // All borrowed; they must outlive this.
  struct Parts {
    const Policy* policy;
    ExportStore* store;          // null: this run cannot export
    RankSaves* ranks = nullptr;  // the others that `policy` leads; null: there are none
  };
  struct Request {
    std::string name = {};  // of the folder, as CheckFileName wants it; empty: that of the version
    model::ExportOptions options = {};
  };
  struct Exported {
    PolicyVersion version;
    std::string path;
    model::ExportedModel model;
  };
  // The errors of ExportStore::Write and of Policy::TakeWeights; FAILED_PRECONDITION (reason NO_MODEL) without a store.
  using Done = std::function<void(const absl::StatusOr<Exported>&)>;

  explicit ExportWriter(Parts parts) : parts_(parts) {}

  // Copies `version`, at which the policy is and whose weights are finite and in use. `done` is called once, by the
  // thread that writes when the export is durable or has failed; at once if nothing could be begun. Only while
  // is_free().
  void Export(const PolicyVersion& version, const Request& request, Done done);
  bool is_free() const;
  // `again` is called, by the thread that writes, when the export under way has ended; at once if there is none.
  void CallWhenFree(std::function<void()> again);
  // How long the step thread has waited for copies since this was called last.
  double TakeWaitSeconds();
  // Waits until no export is under way. DEADLINE_EXCEEDED (reason DISK_STUCK), naming the path, if the disk does not
  // answer.
  absl::Status Wait();

 private:
  absl::Status Begin(const PolicyVersion& version, ExportStore::Request* request) const;
  void Finish();

  const Parts parts_;
  double wait_seconds_ = 0;  // of the step thread
  mutable Mutex mutex_;
  bool is_busy_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::function<void()>> waiting_ ABSL_GUARDED_BY(mutex_);
  SaveThread thread_;  // last: it uses all of the above
};

}  // namespace syncopate::trainer
