#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <future>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "base/mutex.h"
#include "base/status.h"
#include "synchronizer/transport/finite_check.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/notification.h"
#include "tests/unit/trainer/data/training_data_fixture.h"
#include "trainer/loop/step_loop.h"
#include "trainer/memory/state_part.h"
#include "trainer/staging/host_stager.h"

namespace syncopate::trainer {

// A policy of eight numbers whose steps add 1 to each number. A test may stop a step, make it fail or make it damage a
// number. Its weights may be offloaded between uses: an access then ends the process.
class FakePolicy final : public Policy {
 public:
  static constexpr char kTensor[] = "model.norm.weight";

  // From this call on steps wait where they begin, until Release().
  void Hold() { HoldFrom(0); }
  void HoldFrom(int64_t step) {
    MutexLock lock(&mutex_);
    hold_from_ = step;
  }
  void Release() { HoldFrom(kNever); }
  void FailFrom(int64_t step) { fail_from_ = step; }
  void SpoilFrom(int64_t step) { spoil_from_ = step; }
  void StandStillFrom(int64_t step) { still_from_ = step; }  // steps from there on have no signal
  void OffloadBetweenUses() {
    offloads_ = true;
    EXPECT_TRUE(part_.Offload().ok());
    part_.TakeMoves();
  }
  int64_t begun() const {
    MutexLock lock(&mutex_);
    return begun_;
  }
  bool AwaitBegun(int64_t steps) {
    MutexLock lock(&mutex_);
    auto enough = [this, steps]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return begun_ >= steps; };
    return mutex_.AwaitWithTimeout(Condition(&enough), kTestDeadline);
  }

  const Manifest& manifest() const override { return manifest_; }
  // Returns the manifest of the same tensors in the wire dtype.
  static Manifest Wire() { return Manifest::Create({{kTensor, DType::kBFloat16, {kNumbers}}}).value(); }
  absl::StatusOr<StepFigures> Step(const std::vector<const TrajectoryGroup*>&, int64_t) override {
    int64_t step = 0;
    {
      MutexLock lock(&mutex_);
      step = ++begun_;
      auto goes_on = [this, step]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return step < hold_from_; };
      if (!mutex_.AwaitWithTimeout(Condition(&goes_on), kTestDeadline)) return absl::InternalError("held for ever");
    }
    if (step >= fail_from_) return Error(absl::StatusCode::kInternal, "TORCH", "the device is gone");
    return InUse(*this, [&]() -> absl::StatusOr<StepFigures> {
      SYNCOPATE_RETURN_IF_ERROR(FinishRead());
      if (step < still_from_) {
        for (int64_t i = 0; i < kNumbers; ++i) weights_[i] += 1;
      }
      if (step >= spoil_from_) weights_[kNumbers - 1] = std::nanf("");
      StepFigures metrics;
      metrics.trained_tokens = 10;
      return metrics;
    });
  }
  // Makes a step likewise; keeps the arguments.
  absl::StatusOr<StepFigures> SupervisedStep(const std::vector<const TrajectoryGroup*>& groups) override {
    std::vector<GroupId> ids;
    for (const TrajectoryGroup* group : groups) ids.push_back(group->lease.group);
    supervised.Put(ids);
    return Step(groups, 0);
  }
  Mailbox<std::vector<GroupId>> supervised;
  // Keeps the prompts as well, and which step was the last.
  absl::StatusOr<HeldOutLoss> MeasureSupervised(const std::vector<const TrajectoryGroup*>& groups) override {
    EXPECT_GT(uses_, 0);
    std::vector<GroupId> ids;
    int64_t tokens = 0;
    for (const TrajectoryGroup* group : groups) {
      ids.push_back(group->lease.group);
      tokens += static_cast<int64_t>(group->samples.front().tokens.size());
    }
    measured.Put(ids);
    return HeldOutLoss{static_cast<double>(begun()), tokens};
  }
  Mailbox<std::vector<GroupId>> measured;
  absl::Status WriteTensor(PolicyPart part, size_t, const model::ByteSink& sink) const override {
    // All reads of the weights are one use: a use for each tensor would move the weights each time.
    EXPECT_TRUE(part != PolicyPart::kParameters || part_.on_device());
    const float* const arena = part == PolicyPart::kParameters ? weights_ : moments_.data();
    return sink({reinterpret_cast<const char*>(arena), kNumbers * sizeof(float)});
  }
  absl::StatusOr<std::shared_ptr<const PolicySnapshot>> TakeSnapshot(const std::string&) const override {
    return Copy(/*moments=*/true);
  }
  absl::StatusOr<std::shared_ptr<const PolicySnapshot>> TakeWeights(const std::string&) const override {
    return Copy(/*moments=*/false);
  }
  std::shared_ptr<const PolicySnapshot> Copy(bool moments) const {
    EXPECT_TRUE(part_.on_device());
    auto snapshot = std::make_shared<PolicySnapshot>();
    snapshot->manifest = manifest_;
    snapshot->updates = updates();
    snapshot->pieces = {{0, 0, kNumbers, 0}};
    for (PolicyPart part : kPolicyParts) {
      if (part != PolicyPart::kParameters && !moments) continue;
      const float* const from = part == PolicyPart::kParameters ? weights_ : moments_.data();
      const auto copy = std::make_shared<std::vector<float>>(from, from + kNumbers);
      snapshot->arenas[static_cast<size_t>(part)] =
          std::shared_ptr<const char>(copy, reinterpret_cast<const char*>(copy->data()));
    }
    return snapshot;
  }
  absl::Status SetReader(std::function<absl::Status()> finish) override {
    EXPECT_TRUE(finish == nullptr || uses_ > 0);
    reader_ = std::move(finish);
    return absl::OkStatus();
  }
  absl::Status ReadShard(DType /*dtype*/, const ShardSink& sink) const override {
    EXPECT_TRUE(part_.on_device());
    return sink(0, {reinterpret_cast<const char*>(weights_), kNumbers * sizeof(float)});
  }
  absl::StatusOr<uint64_t> Digest() const override { return CombineDigests(DigestBuckets(manifest_, weights_)); }
  absl::Status CheckFinite() const override {
    return synchronizer::CheckFinite(manifest_, reinterpret_cast<const char*>(weights_));
  }
  int64_t updates() const override { return begun(); }

  absl::Status BeginUse() override {
    if (uses_++ == 0) SYNCOPATE_RETURN_IF_ERROR(part_.Load());
    return absl::OkStatus();
  }
  absl::Status EndUse() override {
    EXPECT_GT(uses_, 0);
    if (--uses_ > 0 || (!offloads_ && !rollout_mode_)) return absl::OkStatus();
    SYNCOPATE_RETURN_IF_ERROR(FinishRead());
    return part_.Offload();
  }
  absl::StatusOr<StateMoves> EnterRolloutMode() override {
    EXPECT_EQ(uses_, 0);
    const int64_t before = part_.moves().bytes;
    rollout_mode_ = true;
    SYNCOPATE_RETURN_IF_ERROR(FinishRead());
    SYNCOPATE_RETURN_IF_ERROR(part_.Offload());
    return StateMoves{.offload_seconds = part_.moves().offload_seconds, .bytes = part_.moves().bytes - before};
  }
  absl::StatusOr<StateMoves> EnterTrainerMode() override {
    const int64_t before = part_.moves().bytes;
    rollout_mode_ = false;
    if (!offloads_) SYNCOPATE_RETURN_IF_ERROR(part_.Load());
    return StateMoves{.load_seconds = part_.moves().load_seconds, .bytes = part_.moves().bytes - before};
  }
  PolicyMemory memory() const override { return {.parameter_bytes = part_.device_bytes()}; }
  PolicyMoves TakeMoves() override { return {.parameters = part_.TakeMoves()}; }

 private:
  static constexpr int64_t kNever = int64_t{1} << 40;
  static constexpr int64_t kNumbers = 8;  // the rest of the arena is padding

  // Called before the weights change or move.
  absl::Status FinishRead() {
    const std::function<absl::Status()> finish = std::exchange(reader_, nullptr);
    return finish == nullptr ? absl::OkStatus() : finish();
  }

  std::function<absl::Status()> reader_;
  const Manifest manifest_ = Manifest::Create({{kTensor, DType::kFloat32, {kNumbers}}}).value();
  const std::unique_ptr<StateArena> arena_ =
      MakeHostStateArena(manifest_.arena_bytes(), StateArena::Kind::kChanging, "the weights").value();
  StatePart part_{{arena_.get()}, 0};
  float* const weights_ = reinterpret_cast<float*>(arena_->data());
  std::vector<float> moments_ = std::vector<float>(static_cast<size_t>(manifest_.arena_bytes()) / sizeof(float));
  int uses_ = 0;
  bool offloads_ = false, rollout_mode_ = false;
  // Set before the loop runs.
  int64_t fail_from_ = kNever;
  int64_t spoil_from_ = kNever;
  int64_t still_from_ = kNever;
  mutable Mutex mutex_;
  int64_t begun_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t hold_from_ ABSL_GUARDED_BY(mutex_) = kNever;
};

// Stages like another stager; a test may delay the digests of a version, as a busy device would.
class HeldStager final : public WeightStager {
 public:
  explicit HeldStager(std::unique_ptr<WeightStager> stager) : stager_(std::move(stager)) {}

  // The digests of this step and of later ones are not made before Release().
  void HoldFrom(int64_t step) {
    MutexLock lock(&mutex_);
    hold_from_ = step;
  }
  void Release() { HoldFrom(kNever); }
  // Waits until the digests of this step are delayed.
  bool AwaitHeld(int64_t step) {
    MutexLock lock(&mutex_);
    auto is_held = [this, step]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return held_ == step; };
    return mutex_.AwaitWithTimeout(Condition(&is_held), kTestDeadline);
  }

  const Manifest& manifest() const override { return stager_->manifest(); }
  absl::Status Launch(const PolicyVersion& version) override {
    {
      MutexLock lock(&mutex_);
      launched_ = version.step;
    }
    return stager_->Launch(version);
  }
  absl::StatusOr<Staged> Await() override {
    {
      MutexLock lock(&mutex_);
      held_ = launched_ < hold_from_ ? -1 : launched_;
      auto goes_on = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return launched_ < hold_from_; };
      if (!mutex_.AwaitWithTimeout(Condition(&goes_on), kTestDeadline)) return absl::InternalError("held for ever");
      held_ = -1;
    }
    return stager_->Await();
  }
  double TakeWaitSeconds() override { return stager_->TakeWaitSeconds(); }
  absl::StatusOr<bool> LeaveDevice() override {
    ++left_device_;
    return true;
  }
  int64_t left_device() const { return left_device_; }  // how often it was asked to
  synchronizer::WeightStore* store() override { return stager_->store(); }
  std::string layout() const override { return stager_->layout(); }
  int64_t bytes() const override { return stager_->bytes(); }

 private:
  static constexpr int64_t kNever = int64_t{1} << 40;
  const std::unique_ptr<WeightStager> stager_;
  Mutex mutex_;
  int64_t launched_ ABSL_GUARDED_BY(mutex_) = -1;
  int64_t held_ ABSL_GUARDED_BY(mutex_) = -1;
  int64_t hold_from_ ABSL_GUARDED_BY(mutex_) = kNever;
  std::atomic<int64_t> left_device_ = 0;
};

// Answers each lease rightly, from a thread of its own, as soon as it may.
class FakeRollouter final : public RolloutSink {
 public:
  explicit FakeRollouter(TrainingData* data) : data_(data), thread_([this] { Run(); }) {}
  ~FakeRollouter() override { Stop(); }
  void Stop() {
    {
      MutexLock lock(&mutex_);
      stopping_ = true;
    }
    if (thread_.joinable()) thread_.join();
  }

  void Serve(SessionId session, const PolicyVersion& version) {
    {
      MutexLock lock(&mutex_);
      session_ = session;
    }
    data_->SetServing(session, version);
    data_->SetCredits(session, kCredits);
  }
  // Leases are kept until the rollouter may answer them.
  void HoldAnswers(bool hold) {
    for (LeaseKind kind : {LeaseKind::kTraining, LeaseKind::kEvaluation}) HoldAnswers(kind, hold);
  }
  void HoldAnswers(LeaseKind kind, bool hold) {
    MutexLock lock(&mutex_);
    if (hold) held_.insert(kind);
    if (!hold) held_.erase(kind);
  }

  // From this call on, the reward of these evaluation prompts fails.
  void FailEvaluationPrompts(std::set<int64_t> ordinals) {
    MutexLock lock(&mutex_);
    failing_ = std::move(ordinals);
  }

  // Waits until this rollouter has answered each prompt of this version's evaluation.
  bool AwaitEvaluated(const PolicyVersion& version) {
    while (true) {
      const std::vector<Ack> answered = acks.All();
      size_t count = 0;
      for (const Lease& lease : leases.All()) {
        if (lease.kind != LeaseKind::kEvaluation || lease.version != version) continue;
        count += static_cast<size_t>(
            std::count_if(answered.begin(), answered.end(), [&](const Ack& ack) { return ack.lease == lease.id; }));
      }
      if (count >= static_cast<size_t>(TrainingDataWorld::kEvaluationPrompts)) return true;
      if (!acks.WaitFor(answered.size() + 1)) return false;
    }
  }

  Mailbox<Lease> leases;
  Mailbox<Ack> acks;
  Mailbox<LeaseId> returned;  // leases whose reward failed

  void SendLease(const Lease& lease) override {
    leases.Put(lease);
    MutexLock lock(&mutex_);
    work_.push_back(lease);
  }
  void SendAck(const Ack& ack) override { acks.Put(ack); }
  void SendRevoke(const LeaseId&, const std::string&) override {}
  void Close(const absl::Status&) override {}

 private:
  // There are more credits than an evaluation has prompts, so that leased prompts leave room for others.
  static constexpr int32_t kCredits = 8;

  void Run() {
    while (true) {
      Lease lease;
      SessionId session = 0;
      bool fails = false;
      {
        MutexLock lock(&mutex_);
        auto free = [this](const Lease& one)
                        ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return held_.count(one.kind) == 0; };
        auto may = [this, &free]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
          return stopping_ || std::any_of(work_.begin(), work_.end(), free);
        };
        mutex_.Await(Condition(&may));
        if (stopping_) return;
        auto next = std::find_if(work_.begin(), work_.end(), free);
        lease = std::move(*next);
        work_.erase(next);
        session = session_;
        fails = lease.kind == LeaseKind::kEvaluation && failing_.count(lease.id.group.ordinal) > 0;
      }
      if (fails) {
        data_->ReturnLease(session, lease.id, Error(absl::StatusCode::kInternal, "REWARD_FAILED", "no such key"));
        returned.Put(lease.id);
      } else {
        data_->Submit(session, RightAnswer(lease));
      }
      data_->SetCredits(session, kCredits);
    }
  }

  TrainingData* const data_;
  Mutex mutex_;
  std::deque<Lease> work_ ABSL_GUARDED_BY(mutex_);
  SessionId session_ ABSL_GUARDED_BY(mutex_) = 0;
  std::set<LeaseKind> held_ ABSL_GUARDED_BY(mutex_);
  std::set<int64_t> failing_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// Keeps the events of a run.
class RecordingObserver final : public RunObserver {
 public:
  struct Saved {
    PolicyVersion version;
    absl::Status status;
  };
  Mailbox<StepReport> steps;
  Mailbox<EvaluationReport> evaluations;
  Mailbox<PolicyVersion> lost_evaluations;
  Mailbox<std::pair<PolicyVersion, uint64_t>> publications;  // versions and their digests
  Mailbox<Saved> checkpoints;
  Mailbox<PolicyMemory> memory;

  void RecordMemory(const PolicyMemory& now) override { memory.Put(now); }
  void RecordStep(const StepReport& report) override { steps.Put(report); }
  void RecordEvaluation(const EvaluationReport& report) override { evaluations.Put(report); }
  void RecordLostEvaluation(const PolicyVersion& version) override { lost_evaluations.Put(version); }
  void RecordPublication(const PolicyVersion& version, uint64_t digest, double) override {
    publications.Put({version, digest});
  }
  void RecordCheckpoint(const PolicyVersion& version, const absl::Status& saved) override {
    checkpoints.Put({version, saved});
  }
  void AddPhase(LoopPhase phase, double seconds) override {
    MutexLock lock(&mutex_);
    phases_[phase] += seconds;
  }
  double SecondsIn(LoopPhase phase) const {
    MutexLock lock(&mutex_);
    auto found = phases_.find(phase);
    return found == phases_.end() ? 0 : found->second;
  }

 private:
  mutable Mutex mutex_;
  std::map<LoopPhase, double> phases_ ABSL_GUARDED_BY(mutex_);
};

// A whole step loop over fakes: TrainingData over a disk in memory, checkpoints on another one.
class StepLoopWorld {
 public:
  // `supervised_steps` is the data's number of supervised steps; give the loop the same number.
  explicit StepLoopWorld(int64_t supervised_steps = 0)
      : world_(supervised_steps),
        data_(world_.Open().value()),
        rollouter_(std::make_shared<FakeRollouter>(data_.get())) {
    session_ = data_->Connect(TrainingDataWorld::Member("rollouter-0"), TrainingDataWorld::kRunId, rollouter_).value();
  }
  ~StepLoopWorld() {
    HoldSaves(false);
    if (loop_ != nullptr) loop_->StopFenced();
    policy.Release();
    stager.Release();
    export_disk.HoldOperations(false);
    if (running_.valid()) running_.wait();
    rollouter_->Stop();
    if (laggard_ != nullptr) laggard_->Stop();
    data_->Stop();
  }

  void Start(const StepLoop::Options& options) {
    StepLoop::Parts parts{.policy = &policy,
                          .data = data_.get(),
                          .stager = &stager,
                          .checkpoints = checkpoints_.get(),
                          .observer = &observer,
                          .evaluation_prompts = world_.evaluation_prompts.get(),
                          .publish =
                              [this](Publication publication) {
                                published.Put(publication.version);
                                const int64_t step = publication.version.step;
                                if (failing_syncs.count(step) == 0) rollouter_->Serve(session_, publication.version);
                                if (step <= laggards_last_) laggard_->Serve(laggard_session_, publication.version);
                              },
                          .newest_epoch = [this]() -> absl::StatusOr<int64_t> {
                            AwaitSavesAllowed();
                            return newest_epoch.load();
                          },
                          .exports = exports_.get(),
                          .turns = turns,
                          .measure_turn = measure_turn,
                          .hold_device = hold_device};
    loop_ = std::make_unique<StepLoop>(options, parts, PolicyVersion{1, 0});
    running_ = std::async(std::launch::async, [this] {
      {
        MutexLock lock(&mutex_);
        loop_thread_ = std::this_thread::get_id();
      }
      return loop_->Run();
    });
  }
  // Waits for the end of the run and returns its outcome; DEADLINE_EXCEEDED if the run does not end.
  absl::StatusOr<StepLoop::Outcome> Wait() {
    if (running_.wait_for(absl::ToChronoSeconds(kTestDeadline)) != std::future_status::ready) {
      return absl::DeadlineExceededError("the loop goes on");
    }
    return running_.get();
  }
  // Asks for a checkpoint and waits for the answer: at that time the loop was between two steps.
  absl::StatusOr<std::string> SaveCheckpoint() {
    Mailbox<absl::StatusOr<std::string>> saved;
    loop_->SaveCheckpoint([&saved](const absl::StatusOr<std::string>& name) { saved.Put(name); });
    if (!saved.WaitFor(1)) std::abort();  // otherwise the thread would write to a destroyed object
    return saved.All()[0];
  }
  std::vector<std::string> Checkpoints() {
    std::vector<std::string> names;
    const std::vector<PolicyVersion> versions = checkpoints_->List().value();
    for (const PolicyVersion& version : versions) names.push_back(version.ToString());
    return names;
  }

  // From this call on, saves wait at the last check of whether they may write.
  void HoldSaves(bool hold) {
    MutexLock lock(&mutex_);
    saves_held_ = hold;
  }

  // Call before Start: the limit of a call to the disk.
  void SetDiskDeadline(absl::Duration deadline) {
    checkpoints_ = CheckpointStore::Open(&checkpoint_disk, "/checkpoints", deadline).value();
    exports_ = OpenExports(deadline);
  }
  // Call before Start.
  void CannotExport() { exports_ = nullptr; }

  // Call before Start: adds a second rollouter, to which no sync succeeds after that of step `last`.
  FakeRollouter& AddLaggard(int64_t last) {
    laggard_ = std::make_shared<FakeRollouter>(data_.get());
    laggard_session_ =
        data_->Connect(TrainingDataWorld::Member("rollouter-1"), TrainingDataWorld::kRunId, laggard_).value();
    laggards_last_ = last;
    return *laggard_;
  }

  // Makes a sync to rollouter-0 succeed, whatever `failing_syncs` says.
  void Sync(const PolicyVersion& version) { rollouter_->Serve(session_, version); }

  StepLoop& loop() { return *loop_; }
  FakeRollouter& rollouter() { return *rollouter_; }
  testing::FaultyFileSystem& data_disk() { return world_.disk; }

  FakePolicy policy;
  // Weights are sent in another dtype than the policy's, so that the digests of both differ.
  HeldStager stager{HostStager::Create(&policy, FakePolicy::Wire(), /*slots=*/2).value()};
  RecordingObserver observer;
  testing::FaultyFileSystem checkpoint_disk, export_disk;
  std::atomic<int64_t> newest_epoch = 1;
  Mailbox<PolicyVersion> published;
  TurnDesk* turns = nullptr;                                           // set it before Start
  std::function<void(bool)> measure_turn = nullptr;                    // set it before Start
  std::function<std::shared_ptr<const void>()> hold_device = nullptr;  // set it before Start
  std::set<int64_t> failing_syncs;  // steps whose versions rollouter-0 does not get; set it before Start

 private:
  void AwaitSavesAllowed() {
    MutexLock lock(&mutex_);
    if (std::this_thread::get_id() == loop_thread_) return;  // the loop's thread checks, too, before it copies
    auto may = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !saves_held_; };
    mutex_.AwaitWithTimeout(Condition(&may), kTestDeadline);
  }

  // The policy belongs to no published family, so only its weights are written.
  static absl::StatusOr<model::ExportedModel> WriteWeights(const std::vector<model::TensorToWrite>& tensors,
                                                           const std::string&, const std::string& folder,
                                                           const model::ExportOptions& options) {
    SYNCOPATE_RETURN_IF_ERROR(options.files->CreateDirs(options.partial));
    SYNCOPATE_ASSIGN_OR_RETURN(
        const auto file,
        options.files->OpenForAppend(JoinPath(options.partial, "model.safetensors"), FileSystem::OpenMode::kCreateNew));
    SYNCOPATE_RETURN_IF_ERROR(
        model::StreamSafetensors(tensors, {}, [&file](absl::string_view bytes) { return file->Append(bytes); }));
    SYNCOPATE_RETURN_IF_ERROR(options.files->Rename(options.partial, folder));
    return model::ExportedModel{.files = 1, .bytes = file->size()};
  }
  std::unique_ptr<ExportStore> OpenExports(absl::Duration disk_deadline) {
    return ExportStore::Open(&export_disk, {.root = "/exports", .disk_deadline = disk_deadline, .write = WriteWeights})
        .value();
  }

  Mutex mutex_;
  bool saves_held_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread::id loop_thread_ ABSL_GUARDED_BY(mutex_);
  struct Data : TrainingDataWorld {
    explicit Data(int64_t supervised_steps) { options.ledger.supervised_steps = supervised_steps; }
  };
  Data world_;
  std::unique_ptr<TrainingData> data_;
  std::shared_ptr<FakeRollouter> rollouter_;
  SessionId session_ = 0;
  std::shared_ptr<FakeRollouter> laggard_;
  SessionId laggard_session_ = 0;
  int64_t laggards_last_ = -1;
  std::unique_ptr<CheckpointStore> checkpoints_ = CheckpointStore::Open(&checkpoint_disk, "/checkpoints").value();
  std::unique_ptr<ExportStore> exports_ = OpenExports(kDiskDeadline);
  std::unique_ptr<StepLoop> loop_;
  std::future<absl::StatusOr<StepLoop::Outcome>> running_;
};

// No checkpoints and evaluations unless a test asks for them.
inline StepLoop::Options Steps(int64_t steps) {
  return {.steps = steps, .evaluate_every_steps = 0, .checkpoint_every_steps = 0};
}

}  // namespace syncopate::trainer
