#include "tools/run/local_run.h"

#include <sys/wait.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/clock.h"
#include "base/daemon/exit_code.h"
#include "base/daemon/signals.h"
#include "base/file_system.h"
#include "base/reasons.h"
#include "base/status.h"
#include "ranks/group_secret.h"
#include "services/auth/transport_security.h"
#include "services/config/config_record.h"
#include "services/config/duration.h"
#include "services/config/rules.h"
#include "services/config/run_config.h"
#include "tools/report/live_page.h"
#include "tools/report/load_run.h"
#include "tools/run/child_process.h"
#include "tools/run/launch.h"
#include "tools/run/line_tail.h"
#include "tools/run/monitor.h"
#include "tools/run/resume_notes.h"
#include "tools/run/run_directory.h"
#include "tools/run/summary.h"
#include "tools/run/supervision.h"
#include "tools/run/worker_announcement.h"

namespace syncopate::run {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(50);  // the longest delay of readiness, steps and deadlines
constexpr absl::Duration kRefreshEvery = absl::Milliseconds(100);
constexpr absl::Duration kDiskRetry = absl::Seconds(1);
constexpr size_t kLogLinesShown = 8;
constexpr absl::Duration kPageReadersWithin = absl::Seconds(2);
constexpr char kWorkerRole[] = "environment";
constexpr int64_t kMaxConfigBytes = 1 << 20;

RunSupervision::Options SupervisionOptions(const v1::RunConfig& config) {
  RunSupervision::Options options;
  options.rollouters = config::GetRollouters(config);
  options.rollouter_ranks = config.rollout().tensor_parallel();
  options.trainer_ranks = config.trainer().world();
  options.workers = config.environment().command().empty() ? 0 : config.environment().workers();
  options.grace = config::CheckedDuration(config.run().grace());
  return options;
}

// The I/O around RunSupervision: processes, files, the terminal. Runs on one thread.
class LocalRun {
 public:
  LocalRun(LocalRunOptions options, std::shared_ptr<const auth::TransportSecurity> security, RunDirectory directory,
           daemon::SignalInbox signals, std::unique_ptr<report::LivePage> page)
      : config_(std::move(options.config)),
        accept_reward_change_(options.accept_reward_change),
        binary_dir_(std::move(options.binary_dir)),
        program_(options.program),
        err_(*options.err),
        directory_(std::move(directory)),
        signals_(std::move(signals)),
        display_(MakeDisplay(options.output, options.program, options.out)),
        supervision_(SupervisionOptions(config_)),
        steps_(directory_.Path("metrics.jsonl")),
        summary_before_(ReadSummary(directory_.path())),
        config_before_(ReadConfig(directory_.path())),
        on_trial_(config_.run().resume() && (!config_before_.empty() || HoldsState(directory_.path()))),
        page_(std::move(page)),
        monitor_(std::move(security), SyncListener()),
        started_at_(Clock::Real()->Now()) {
    view_.name = config_.run().name();
    view_.steps_total = config_.run().steps();
    const absl::Duration limit = config::CheckedDuration(config_.run().duration());
    if (limit > absl::ZeroDuration() && limit < absl::InfiniteDuration()) {
      view_.seconds_limit = absl::ToDoubleSeconds(limit);
    }
  }

  int Execute() {
    const std::string config_path =
        on_trial_ ? NextConfigPath(directory_.path()) : ResolvedConfigPath(directory_.path());
    const absl::Status written = OnceThereIsRoom("the configuration", [&] {
      return WriteFileAtomically(FileSystem::Real(), config_path, config::ToYaml(config_));
    });
    if (!written.ok()) {
      err_ << written.message() << "\n";
      return config::kConfigExitCode;
    }
    if (config_.run().resume()) {
      for (const std::string& note : ResumeNotes(config_, directory_.path())) display_->Daemon("run", note);
    }
    Perform(supervision_.Start(Now()));
    while (!supervision_.done()) {
      daemon::SignalInbox::Received received = signals_.Wait(kTick);
      if (received.interrupt) Interrupt();
      NoticeRank0();
      NoticeReady();  // before Reap(), so that a daemon that has ended already counts as having been ready
      if (on_trial_) KeepConfig();
      if (received.child) Reap();
      Perform(supervision_.OnTick(Now()));
      RetryEndpoints();
      // A trainer may make steps before the last rollouter is ready: steps are shown after the start is announced.
      if (announced_) ReadSteps();
      Refresh();
    }
    monitor_.Stop();
    return Finish();
  }

 private:
  struct Process {
    ChildId child;
    bool ready = false;
  };

  static absl::Time Now() { return Clock::Real()->Now(); }

  static std::string ReadConfig(const std::string& run_dir) {
    return ReadFile(FileSystem::Real(), ResolvedConfigPath(run_dir), kMaxConfigBytes).value_or("");
  }

  // Also true if daemons that were started by hand have written the state.
  static bool HoldsState(const std::string& run_dir) {
    return FileSystem::Real()->List(JoinPath(run_dir, "state/trainer")).ok();
  }

  // The page outlives the monitor, which calls this listener.
  RunMonitor::SyncListener SyncListener() {
    if (page_ == nullptr) return nullptr;
    return [page = page_.get()](const v1::SyncRecord& record) { page->AddSync(record); };
  }

  void Interrupt() {
    if (!supervision_.stopping()) display_->Daemon("run", "drains and stops; interrupt again to stop at once");
    if (page_ != nullptr) page_->SetStatus("stopping");
    Perform(supervision_.OnInterrupt(Now()));
  }

  void Perform(const std::vector<ChildAction>& actions) {
    for (const ChildAction& action : actions) {
      if (action.kind == ChildAction::Kind::kStart) {
        StartOne(action.child);
        continue;
      }
      // The child is to be stopped before it was started.
      if (awaiting_rank0_.erase(action.child) > 0) {
        Perform(supervision_.OnExit(action.child, {true, SIGTERM}, Now()));  // it was never started
        continue;
      }
      for (const auto& [pid, process] : processes_) {
        if (process.child == action.child) ::kill(pid, action.kind == ChildAction::Kind::kKill ? SIGKILL : SIGTERM);
      }
    }
  }

  static bool IsFollower(const ChildId& child) {
    return child.rank > 0 || (child.role == "trainer" && child.index > 0);
  }
  static ChildId GetRank0(const ChildId& child) { return {child.role, child.role == "trainer" ? 0 : child.index}; }

  // The address on which this child's rank 0 listens for it; "" before it does.
  std::string FindRank0(const ChildId& child) const {
    const ChildId rank0 = GetRank0(child);
    const char* folder = child.role == "trainer" ? daemon::kRanksFolder : daemon::kReplicasFolder;
    auto endpoint = daemon::ReadDaemonEndpoint(daemon::EndpointPath(directory_.Path(folder), rank0.role, rank0.index));
    // An earlier incarnation may have left its file: the process that it names must be one of ours.
    const bool is_ours = endpoint.ok() && processes_.count(static_cast<pid_t>(endpoint->pid)) > 0;
    return is_ours ? endpoint->grpc : "";  // "" also for a file of an earlier incarnation
  }

  // Starts the other ranks whose rank 0 listens for them now.
  void NoticeRank0() {
    // A copy, because starting changes the set.
    for (const ChildId& child : std::set<ChildId>(awaiting_rank0_)) {
      if (FindRank0(child).empty()) continue;
      awaiting_rank0_.erase(child);
      StartOne(child);
    }
  }

  void StartOne(const ChildId& child) {
    const std::string rank0 = IsFollower(child) ? FindRank0(child) : "";
    if (IsFollower(child) && rank0.empty()) {
      awaiting_rank0_.insert(child);
      return;
    }
    Launch launch = PlanLaunch(config_, binary_dir_, directory_.path(), child, synchronizer_, digest_, rank0,
                               accept_reward_change_, on_trial_);
    if (config_.rollout().tensor_parallel() > 1 && child.role == "rollouter") {
      std::string& secret = replica_secrets_[child.index];
      if (secret.empty()) secret = DrawGroupSecret();
      launch.environment = {GroupSecretAssignment(secret)};
    }
    if (child.role == kWorkerRole) GetAnnouncement(child).Forget();
    auto pid = StartChild(launch);
    if (pid.ok()) {
      processes_[*pid] = {child, false};
      return;
    }
    std::string why(pid.status().message());
    if (without_room_.count(child) == 0) display_->Daemon(child.Name(), why);
    if (ErrorReason(pid.status()) == reason::kNoSpace) without_room_.insert(child);
    // Treated like a process that died at once, so that it is started again later or given up.
    const bool no_room = ErrorReason(pid.status()) == reason::kNoSpace;
    Perform(supervision_.OnExit(child, {false, no_room ? daemon::kExitNoSpace : kRunFailedExitCode}, Now()));
  }

  void Reap() {
    int status = 0;
    // One signal may stand for several ended children.
    for (pid_t pid; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
      auto found = processes_.find(pid);
      if (found == processes_.end()) continue;
      ChildId child = found->second.child;
      processes_.erase(found);
      endpoints_.erase(child);
      bool by_signal = WIFSIGNALED(status);
      ChildExit exit{by_signal, by_signal ? WTERMSIG(status) : WEXITSTATUS(status)};
      // A child that ends because it was asked to is not reported.
      bool expected = supervision_.stopping();
      std::vector<ChildAction> actions = supervision_.OnExit(child, exit, Now());
      if (supervision_.outcome() == RunOutcome::kCompleted) expected = true;
      if (!expected) TellOfExit(child, exit);
      Perform(actions);
    }
  }

  void TellOfExit(const ChildId& child, const ChildExit& exit) {
    if (supervision_.WaitsForRoom(child)) {
      // It fails again each second, but is reported once.
      if (!without_room_.insert(child).second) return;
      display_->Daemon(child.Name(), absl::StrCat("finds no room on the disk of ", directory_.path(),
                                                  ": free space on that disk; it is started again each second"));
      return;
    }
    display_->Daemon(child.Name(), exit.ToString() + (supervision_.WillRestart(child) ? "; it is started again" : ""));
  }

  void NoticeReady() {
    std::vector<ChildId> ready;
    for (auto& [pid, process] : processes_) {
      if (process.ready) continue;
      if (process.child.role == kWorkerRole) {
        if (!ReadAnnouncement(process.child)) continue;
        process.ready = true;
        ready.push_back(process.child);
        continue;
      }
      if (IsFollower(process.child)) {
        // Rank 0 is ready when all its ranks are.
        process.ready = endpoints_.count(GetRank0(process.child)) > 0;
        if (process.ready) ready.push_back(process.child);
        continue;
      }
      auto endpoint =
          daemon::ReadDaemonEndpoint(daemon::EndpointPath(directory_.path(), process.child.role, process.child.index));
      if (!endpoint.ok() || endpoint->pid != pid) continue;  // not ready yet, or an earlier incarnation's file
      process.ready = true;
      endpoints_[process.child] = *endpoint;
      if (process.child.role == "synchronizer") synchronizer_ = endpoint->grpc;
      ready.push_back(process.child);
    }
    if (ready.empty()) return;
    Publish();
    // OnReady starts processes, so it is not called inside the loop over them.
    for (const ChildId& child : ready) {
      without_room_.erase(child);
      bool again = supervision_.Restarts().at(child) > 0;
      if (again) display_->Daemon(child.Name(), absl::StrCat("is ready again, pid ", GetPid(child)));
      Perform(supervision_.OnReady(child, Now()));
    }
  }

  // A resume is accepted as soon as the trainer and a rollouter are ready. The trainer, which has changed nothing so
  // far, sees that the file is gone, and begins. A daemon that is about to read the file finds it under its new name.
  void KeepConfig() {
    auto has = [&](const std::string& role) {
      return std::any_of(endpoints_.begin(), endpoints_.end(),
                         [&](const auto& entry) { return entry.first.role == role; });
    };
    if (!has("trainer") || (config::GetRollouters(config_) > 0 && !has("rollouter"))) return;
    FileSystem* const files = FileSystem::Real();
    absl::Status kept = files->Rename(NextConfigPath(directory_.path()), ResolvedConfigPath(directory_.path()));
    if (kept.ok()) {
      on_trial_ = false;
      kept = files->SyncDir(directory_.path());
    }
    // The next tick tries again; the trainer waits.
    if (!kept.ok() && !std::exchange(told_not_kept_, true)) display_->Daemon("run", std::string(kept.message()));
  }

  // Removes what an unaccepted resume has changed: only its configuration file.
  void DropConfig() {
    const absl::Status removed = FileSystem::Real()->RemoveTree(NextConfigPath(directory_.path()));
    if (!removed.ok()) err_ << removed.message() << "\n";
    // A run begins without run.resume and is resumed with it.
    const bool another =
        config::ToYaml(config_) != absl::StrReplaceAll(config_before_, {{"\n  resume: false\n", "\n  resume: true\n"}});
    if (another) {
      err_ << "the run is as it was, with the configuration that it had; " << program_ << " run --resume "
           << directory_.path() << " goes on with that\n";
    }
    view_.resume_helps = view_.resume_helps || another;
  }

  WorkerAnnouncement& GetAnnouncement(const ChildId& worker) {
    return announcements_.try_emplace(worker.index, EnvironmentAnnouncement(config_, directory_.path(), worker.index))
        .first->second;
  }

  // False until the worker has announced that it listens. The digest of the first one is the run's.
  bool ReadAnnouncement(const ChildId& worker) {
    const std::optional<std::string> digest = GetAnnouncement(worker).ReadDigest();
    if (!digest.has_value()) return false;
    if (digest_.empty()) digest_ = *digest;
    if (*digest != digest_) {
      display_->Daemon(worker.Name(), "has other code than the run was begun with; rollouters do not use it");
    }
    return true;
  }

  int64_t GetPid(const ChildId& child) const {
    for (const auto& [pid, process] : processes_) {
      if (process.child == child && process.ready) return pid;
    }
    return 0;
  }

  // Publishes the daemons' addresses to all readers.
  void Publish() {
    std::vector<daemon::DaemonEndpoint> daemons;
    for (const auto& [child, endpoint] : endpoints_) daemons.push_back(endpoint);
    WriteEndpoints(daemons);
    monitor_.SetEndpoints(daemons);
    // The synchronizer, rank 0 of the trainer, and rank 0 of each rollouter: the other ranks listen for their group
    // only.
    bool all = daemons.size() == static_cast<size_t>(config::GetRollouters(config_)) + 2;
    if (all && !std::exchange(announced_, true)) {
      display_->Started(directory_.path(), daemons, page_ == nullptr ? "" : page_->url());
    }
  }

  // After a full disk the file is written as soon as there is room: daemons find each other without it.
  void WriteEndpoints(const std::vector<daemon::DaemonEndpoint>& daemons) {
    const absl::Status written = daemon::WriteRunEndpoints(directory_.path(), daemons);
    unwritten_endpoints_.reset();
    if (ErrorReason(written) == reason::kNoSpace) {
      unwritten_endpoints_ = daemons;
      next_write_ = Now() + kDiskRetry;
      display_->Daemon("run", absl::StrCat("tries again each second: ", std::string(written.message())));
    } else if (!written.ok()) {
      Perform(supervision_.OnFailure(std::string(written.message()), Now()));
    }
  }

  void RetryEndpoints() {
    if (!unwritten_endpoints_.has_value() || Now() < next_write_) return;
    next_write_ = Now() + kDiskRetry;
    const absl::Status written = daemon::WriteRunEndpoints(directory_.path(), *unwritten_endpoints_);
    if (ErrorReason(written) != reason::kNoSpace) unwritten_endpoints_.reset();
    if (!written.ok() && !unwritten_endpoints_.has_value()) {
      Perform(supervision_.OnFailure(std::string(written.message()), Now()));
    }
  }

  void ReadSteps() {
    for (const std::string& line : steps_.Next()) {
      auto record = records::ParseStepRecord(line);
      if (!record.ok()) continue;  // a crash has cut the line
      view_.steps.Add(*record);
      display_->Step(*record, line);
      if (page_ != nullptr) page_->AddRecord(*record);
    }
  }

  void Refresh() {
    // The table is drawn ten times a second; signals are checked more often.
    if (!announced_ || Now() < next_refresh_) return;
    next_refresh_ = Now() + kRefreshEvery;
    UpdateView();
    display_->Refresh(view_);
  }

  void UpdateView() {
    RunMonitor::Snapshot snapshot = monitor_.Get();
    view_.elapsed_seconds = absl::ToDoubleSeconds(Now() - started_at_);
    view_.syncs = snapshot.syncs;
    view_.checkpoints = snapshot.checkpoints;
    view_.groups = snapshot.groups;
    if (page_ != nullptr) page_->SetCheckpoints(ShownCheckpoints());
    view_.waiting = supervision_.stopping() ? "stopping" : snapshot.waiting;
    view_.alarm = snapshot.alarm;
    view_.reward_failure = snapshot.reward_failure;
    view_.daemons.clear();
    for (const auto& [child, restarts] : supervision_.Restarts()) {
      DaemonRow row = snapshot.daemons[child.Name()];
      row.name = child.Name();
      row.pid = GetPid(child);
      const bool ready = row.pid != 0;
      if (!ready) row.state = supervision_.stopping() ? "stopped" : "starting";
      if (row.state.empty()) row.state = "ready";  // ready but not asked yet
      row.restarts = restarts;
      if (child.role == "trainer" && child.index == 0) {
        row.tokens_per_second = view_.steps.TokensPerSecond();
        row.idle = view_.steps.Idle();
      }
      view_.daemons.push_back(std::move(row));
    }
  }

  int Finish() {
    ReadSteps();
    UpdateView();
    RunEnd end{supervision_.outcome(), supervision_.reason(), absl::ToDoubleSeconds(Now() - started_at_),
               supervision_.Restarts()};
    view_.resume_helps = supervision_.resume_helps();
    if (end.outcome == RunOutcome::kFailed) end.log = ShowLog();
    const auto summary = OnceThereIsRoom(
        "the summary", [&] { return FinishSummary(directory_.path(), end, summary_before_, /*keep=*/on_trial_); });
    if (on_trial_) DropConfig();
    if (!summary.ok()) {
      err_ << "the summary is lost: " << summary.status().message() << "\n";
      return kRunFailedExitCode;
    }
    view_.checkpoints.export_folder = ExportFolder(*summary);
    view_.checkpoints.of_adapters = config::HasAdapters(config_);
    display_->Ended(view_, directory_.path(), *summary);
    if (page_ != nullptr) {
      // Lets open pages show how the run ended, and why, before their server is gone.
      page_->SetEnd(OutcomeName(end.outcome), end.reason, end.log, *summary);
      page_->AwaitReaders(kPageReadersWithin);
    }
    if (end.outcome == RunOutcome::kCompleted) return 0;
    if (end.outcome == RunOutcome::kInterrupted) return kRunInterruptedExitCode;
    return supervision_.lost_peer() ? kRunLostPeerExitCode : kRunFailedExitCode;
  }

  static const absl::Status& StatusIn(const absl::Status& status) { return status; }
  template <typename T>
  static const absl::Status& StatusIn(const absl::StatusOr<T>& result) {
    return result.status();
  }
  // The result of `write`: on a full disk it is called again each second until there is room, or an interrupt ends
  // that.
  template <typename Write>
  std::invoke_result_t<const Write&> OnceThereIsRoom(const char* what, const Write& write) {
    auto written = write();
    if (ErrorReason(StatusIn(written)) == reason::kNoSpace) {
      err_ << what << " waits for room; interrupt to end without it: " << StatusIn(written).message() << std::endl;
    }
    while (ErrorReason(StatusIn(written)) == reason::kNoSpace && !signals_.Wait(kDiskRetry).interrupt) {
      written = write();
    }
    return written;
  }

  report::RunHistory::Checkpoints ShownCheckpoints() const {
    const CheckpointFigures& shown = view_.checkpoints;
    return {.failed = shown.failed, .error = shown.error, .best = shown.best, .best_reward = shown.best_reward};
  }

  // The folder of the best checkpoint; "" if there is none, or if keys describe the model, which then cannot be
  // exported.
  std::string ExportFolder(const nlohmann::json& summary) const {
    const nlohmann::json::json_pointer path("/checkpoints/best");
    const bool said = summary.contains(path) && summary[path].is_string();
    const std::string best = said ? summary[path].get<std::string>() : view_.checkpoints.best;
    // All weights go out with the model directory's config.json; adapters need none.
    if (best.empty() || (config_.model().path().empty() && !config::HasAdapters(config_))) return "";
    const std::string root =
        config_.checkpoint().dir().empty() ? directory_.Path("checkpoints") : config_.checkpoint().dir();
    // When it is too old to resume from, the best checkpoint is kept under another name.
    std::error_code ignored;
    const std::filesystem::path place = std::filesystem::path(root) / best;
    return std::filesystem::exists(place, ignored) ? place.string() : (std::filesystem::path(root) / "best").string();
  }

  // Prints and returns the end of the log of the process that failed.
  std::vector<std::string> ShowLog() {
    err_ << "the run failed: " << supervision_.reason() << "\n";
    if (supervision_.lost_peer()) {
      err_ << "a fresh start may do better: " << program_ << " run --resume " << directory_.path()
           << " goes on from the last checkpoint\n";
    }
    if (supervision_.culprit().empty()) return {};
    std::string log = directory_.Path(absl::StrCat("logs/", supervision_.culprit(), ".log"));
    err_ << "the end of " << log << ":\n";
    std::vector<std::string> lines = LastLines(log, kLogLinesShown);
    for (const std::string& line : lines) err_ << "  " << line << "\n";
    return lines;
  }

  const v1::RunConfig config_;
  const bool accept_reward_change_;
  const std::string binary_dir_, program_;
  std::ostream& err_;
  const RunDirectory directory_;
  std::map<int64_t, WorkerAnnouncement> announcements_;  // of workers, by index
  daemon::SignalInbox signals_;
  const std::unique_ptr<RunDisplay> display_;
  RunSupervision supervision_;
  LineTail steps_;
  const std::string summary_before_;  // of an earlier incarnation; "": none
  const std::string config_before_;   // the resolved configuration of an earlier incarnation; "": none
  bool on_trial_;                     // this configuration is not the run's yet
  bool told_not_kept_ = false;
  const std::unique_ptr<report::LivePage> page_;  // null: none is served
  RunMonitor monitor_;
  RunView view_;
  const absl::Time started_at_;
  absl::Time next_refresh_ = absl::InfinitePast();
  bool announced_ = false;    // all daemons have been ready
  std::string synchronizer_;  // its address, "" before it was first ready
  std::set<ChildId> awaiting_rank0_;
  std::set<ChildId> without_room_;  // with a reported start on a full disk
  std::optional<std::vector<daemon::DaemonEndpoint>> unwritten_endpoints_;
  absl::Time next_write_ = absl::InfinitePast();
  std::string digest_;                              // of the worker's code, "" before it was first ready
  std::map<int64_t, std::string> replica_secrets_;  // shared by a rollouter's ranks, by its index
  std::map<pid_t, Process> processes_;
  std::map<ChildId, daemon::DaemonEndpoint> endpoints_;  // of ready processes
};

std::string LocalTime() {
  return absl::FormatTime("%Y%m%d-%H%M%S",
                          absl::FromUnixMicros(static_cast<int64_t>(1e6 * Clock::Real()->UnixSeconds())),
                          absl::LocalTimeZone());
}

// Makes paths absolute, so that config.resolved.yaml can be used from any folder.
void MakeAbsolute(v1::RunConfig* config) {
  v1::SecuritySection* security = config->mutable_security();
  for (std::string* path : {security->mutable_tls_cert(), security->mutable_tls_key(), security->mutable_tls_ca(),
                            security->mutable_token_file(), config->mutable_model()->mutable_path()}) {
    if (!path->empty()) *path = std::filesystem::absolute(*path).string();
  }
}

// Finds missing devices before anything is made or started.
absl::Status CheckDevices(const v1::RunConfig& config, const std::function<model::Hardware()>& look) {
  std::vector<model::DeviceRequest> requests = {{.key = "train.device", .wanted = config.train().device()}};
  if (config::GetRollouters(config) > 0)
    requests.push_back({.key = "rollout.device", .wanted = config.rollout().device()});
  for (const model::DeviceRequest& request : requests) {
    if (!model::IsCuda(request.wanted)) continue;
    SYNCOPATE_RETURN_IF_ERROR(model::ChooseDevice(request, look()).status());
  }
  return absl::OkStatus();
}

// The credentials that this process shows to its daemons, if the configured files can be used for that too.
absl::StatusOr<std::shared_ptr<const auth::TransportSecurity>> LoadSecurity(const v1::SecuritySection& section) {
  for (const char* role : {"synchronizer", "trainer", "rollouter"}) {
    SYNCOPATE_RETURN_IF_ERROR(auth::TransportSecurity::Load(section, role).status());
  }
  return auth::TransportSecurity::Load(section, "viewer");
}

// Chooses the worker's address, if the configuration leaves it open.
absl::Status PlaceWorker(v1::RunConfig* config) {
  v1::EnvironmentSection* environment = config->mutable_environment();
  if (environment->command().empty() || !environment->address().empty()) return absl::OkStatus();
  // sockaddr_un has room for 108 bytes including the terminating zero.
  constexpr size_t kMaxSocketPath = 107;
  std::vector<std::string> addresses;
  for (int64_t i = 0; i < environment->workers(); ++i) {
    const std::string name = i == 0 ? "environment.sock" : absl::StrCat("environment-", i, ".sock");
    const std::string path = (std::filesystem::path(config->run().dir()) / name).string();
    if (path.size() > kMaxSocketPath) {
      return Error(
          absl::StatusCode::kInvalidArgument, "BAD_CONFIG",
          absl::StrCat(path, " is too long for a socket; set environment.address=unix:PATH to a path of at most ",
                       kMaxSocketPath, " bytes, or to 127.0.0.1:PORT"));
    }
    addresses.push_back(absl::StrCat("unix:", path));
  }
  environment->set_address(absl::StrJoin(addresses, ","));
  return absl::OkStatus();
}

// The initial history of the run's page: that of earlier incarnations, if there were any.
absl::StatusOr<report::RunHistory> GetHistory(const v1::RunConfig& config) {
  absl::StatusOr<report::RunHistory> before = report::LoadRun(FileSystem::Real(), config.run().dir());
  report::RunHistory history = before.ok() ? *std::move(before) : report::RunHistory();
  SYNCOPATE_ASSIGN_OR_RETURN(report::RunHistory::Description description,
                             report::DescribeRun(config.run().dir(), config::ToYaml(config)));
  history.SetDescription(std::move(description));
  return history;
}

}  // namespace

int RunLocally(LocalRunOptions options) {
  auto refuse = [&options](const absl::Status& status) {
    *options.err << status.message() << "\n";
    return config::kConfigExitCode;
  };
  absl::Status binaries = CheckBinaries(options.binary_dir, {"synchronizer", "trainer", "rollouter"});
  if (!binaries.ok()) return refuse(binaries);
  // Before any thread is started: a signal that another thread takes would be lost.
  auto signals = daemon::SignalInbox::Open();
  if (!signals.ok()) return refuse(signals.status());
  MakeAbsolute(&options.config);
  if (absl::Status there = CheckDevices(options.config, options.look_at_hardware); !there.ok()) return refuse(there);
  auto security = LoadSecurity(options.config.security());
  if (!security.ok()) return refuse(security.status());
  if (options.config.run().resume()) {  // before the first byte of its directory is changed
    auto changed = config::CheckResume(FileSystem::Real(), options.config.run().dir(), options.config,
                                       options.accept_reward_change);
    if (!changed.ok()) return refuse(changed.status());
  }
  std::unique_ptr<report::LivePage> page;  // before the directory: an address that is not available changes nothing
  if (options.web.has_value()) {
    auto started = report::LivePage::Start(*options.web);
    if (!started.ok()) return refuse(started.status());
    page = *std::move(started);
  }
  auto directory = RunDirectory::Claim(options.config.run(), LocalTime());
  if (!directory.ok()) return refuse(directory.status());
  // Absolute, so that a reader of config.resolved.yaml in any folder finds the directory.
  options.config.mutable_run()->set_dir(std::filesystem::absolute(directory->path()).string());
  if (absl::Status placed = PlaceWorker(&options.config); !placed.ok()) return refuse(placed);
  if (page != nullptr) {
    page->SetRunDir(options.config.run().dir());
    auto history = GetHistory(options.config);
    if (!history.ok()) return refuse(history.status());
    page->SetHistory(*std::move(history));
  }
  return LocalRun(std::move(options), *std::move(security), *std::move(directory), *std::move(signals), std::move(page))
      .Execute();
}

}  // namespace syncopate::run
