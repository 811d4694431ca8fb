#include "trainer/checkpoint/checkpoint_store.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/faulty_file_system.h"
#include "tests/support/process.h"
#include "tests/support/status_matchers.h"

namespace syncopate::trainer {
namespace {

using ::syncopate::testing::FaultyFileSystem;
using ::syncopate::testing::HasMessage;
using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Fault = FaultyFileSystem::Fault;
using Survives = FaultyFileSystem::Survives;

constexpr char kRoot[] = "/run/checkpoints";
constexpr int64_t kPageBytes = 4096;

// The contents depend on the version, so that a mixture of two checkpoints cannot pass for either.
std::string ModelBytes(PolicyVersion version) {
  std::string bytes(3 * kPageBytes + 17, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 31 + version.epoch * 7 + version.step);
  return bytes;
}

CheckpointStore::SaveRequest Request(PolicyVersion version) {
  CheckpointStore::SaveRequest request;
  request.version = version;
  request.files["data.pb"] = "position " + version.ToString();
  request.files["model.safetensors"] = [version](const CheckpointStore::ByteSink& sink) -> absl::Status {
    std::string bytes = ModelBytes(version);
    SYNCOPATE_RETURN_IF_ERROR(sink(absl::string_view(bytes).substr(0, 100)));
    return sink(absl::string_view(bytes).substr(100));
  };
  request.metadata = {{"run_id", "test"}, {"log_sequence", "12"}};
  return request;
}

std::unique_ptr<CheckpointStore> MustOpen(FileSystem* files) {
  auto store = CheckpointStore::Open(files, kRoot);
  EXPECT_THAT(store, IsOk());
  return store.ok() ? *std::move(store) : nullptr;
}

class CheckpointStoreTest : public ::testing::Test {
 protected:
  void SetUp() override { store_ = MustOpen(&files_); }

  void Save(PolicyVersion version) { ASSERT_THAT(store_->Save(Request(version)), IsOk()); }
  std::string Path(PolicyVersion version, const std::string& file) {
    return JoinPath(JoinPath(kRoot, version.ToString()), file);
  }

  FaultyFileSystem files_;
  std::unique_ptr<CheckpointStore> store_;
};

// A disk whose removals are slow: `before_removal` runs before each of them.
class SlowlyRemovingDisk final : public FileSystem {
 public:
  SlowlyRemovingDisk(FileSystem* disk, std::function<void()> before_removal)
      : disk_(disk), before_removal_(std::move(before_removal)) {}

  absl::Status CreateDirs(const std::string& path) override { return disk_->CreateDirs(path); }
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override { return disk_->List(path); }
  absl::StatusOr<int64_t> FileBytes(const std::string& path) override { return disk_->FileBytes(path); }
  absl::StatusOr<std::unique_ptr<ReadableFile>> OpenForRead(const std::string& path) override {
    return disk_->OpenForRead(path);
  }
  absl::StatusOr<std::unique_ptr<AppendFile>> OpenForAppend(const std::string& path, OpenMode mode) override {
    return disk_->OpenForAppend(path, mode);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override { return disk_->Rename(from, to); }
  absl::Status RemoveTree(const std::string& path) override {
    before_removal_();
    return disk_->RemoveTree(path);
  }
  absl::Status SyncDir(const std::string& path) override { return disk_->SyncDir(path); }

 private:
  FileSystem* const disk_;
  const std::function<void()> before_removal_;
};

TEST_F(CheckpointStoreTest, ReadsBackWhatWasSaved) {
  Save({1, 20});
  auto latest = store_->LoadLatest();
  ASSERT_THAT(latest, IsOk());
  EXPECT_EQ(latest->checkpoint.version, (PolicyVersion{1, 20}));
  EXPECT_EQ(latest->checkpoint.metadata, Request({1, 20}).metadata);
  EXPECT_THAT(latest->skipped, IsEmpty());
  EXPECT_EQ(store_->ReadFile(latest->checkpoint, "model.safetensors").value(), ModelBytes({1, 20}));
  EXPECT_EQ(store_->ReadFile(latest->checkpoint, "data.pb").value(), "position e1-s20");
}

TEST(CheckpointStoreDiskTest, WorksOnTheRealFileSystem) {
  testing::TempDir folder;
  for (int64_t step = 1; step <= 4; ++step) {
    auto store = CheckpointStore::Open(FileSystem::Real(), folder.path() + "/checkpoints");
    ASSERT_THAT(store, IsOk());
    ASSERT_THAT((*store)->Save(Request({1, step})), IsOk());
    EXPECT_EQ((*store)->LoadLatest()->checkpoint.version.step, step);
    ASSERT_THAT((*store)->Prune(2), IsOk());
  }
  EXPECT_THAT(FileSystem::Real()->List(folder.path() + "/checkpoints").value(), ElementsAre("e1-s3", "e1-s4"));
}

TEST(CheckpointStoreDiskTest, MapsAFileAndRefusesOneThatWasCutMeanwhile) {
  testing::TempDir folder;
  auto store = CheckpointStore::Open(FileSystem::Real(), folder.path() + "/checkpoints").value();
  ASSERT_THAT(store->Save(Request({1, 3})), IsOk());
  const CheckpointManifest checkpoint = store->LoadLatest().value().checkpoint;
  EXPECT_EQ((*store->MapFile(checkpoint, "model.safetensors"))->bytes(), ModelBytes({1, 3}));
  EXPECT_THAT(store->MapFile(checkpoint, "none"), HasReason("CHECKPOINT_DAMAGED"));
  const std::string path = folder.path() + "/checkpoints/e1-s3/model.safetensors";
  ASSERT_EQ(::truncate(path.c_str(), 3), 0);
  EXPECT_THAT(store->MapFile(checkpoint, "model.safetensors"), HasReason("CHECKPOINT_DAMAGED"));
  ASSERT_EQ(::unlink(path.c_str()), 0);
  EXPECT_THAT(store->MapFile(checkpoint, "model.safetensors"), HasReason("CHECKPOINT_DAMAGED"));
}

TEST_F(CheckpointStoreTest, LoadsTheHighestByEpochBeforeStepAndNotByText) {
  Save({1, 100});
  Save({2, 9});
  Save({2, 10});
  EXPECT_EQ(store_->LoadLatest()->checkpoint.version, (PolicyVersion{2, 10}));
  EXPECT_THAT(store_->List().value(), ElementsAre(PolicyVersion{1, 100}, PolicyVersion{2, 9}, PolicyVersion{2, 10}));
}

TEST_F(CheckpointStoreTest, SaysThatThereIsNone) { EXPECT_THAT(store_->LoadLatest(), HasReason("NO_CHECKPOINT")); }

TEST_F(CheckpointStoreTest, IgnoresWhatIsNoCheckpoint) {
  for (const char* name : {"lost+found", "e1", "e01-s1", "e1-s+1", "e-1-s1", "e1-s1.old"}) {
    ASSERT_THAT(files_.CreateDirs(JoinPath(kRoot, name)), IsOk());
  }
  EXPECT_THAT(store_->List().value(), IsEmpty());
}

TEST_F(CheckpointStoreTest, PublishesNothingIfTheLastLookRefuses) {
  auto request = Request({1, 1});
  request.last_look = [this] {
    EXPECT_THAT(store_->List().value(), IsEmpty()) << "the check comes before the rename";
    return Error(absl::StatusCode::kFailedPrecondition, "FENCED", "epoch 2 has begun");
  };
  EXPECT_THAT(store_->Save(request), HasReason("FENCED"));
  EXPECT_THAT(files_.List(kRoot).value(), IsEmpty());
}

TEST_F(CheckpointStoreTest, AFolderThatIsBeingRemovedCanNotGetTheNameOfACheckpoint) {
  const std::string written = JoinPath(kRoot, ".tmp-e1-s3-01234567");
  ASSERT_THAT(files_.CreateDirs(written), IsOk());
  ASSERT_THAT(files_.PutFile(JoinPath(written, "model.safetensors"), "half"), IsOk());
  absl::Status renamed;
  SlowlyRemovingDisk disk(&files_, [&] { renamed = files_.Rename(written, JoinPath(kRoot, "e1-s3")); });
  MustOpen(&disk);
  EXPECT_TRUE(absl::IsNotFound(renamed)) << renamed;
  EXPECT_THAT(files_.List(kRoot).value(), IsEmpty());
}

TEST_F(CheckpointStoreTest, PassesOnTheErrorOfAFilesWriter) {
  auto request = Request({1, 1});
  request.files["model.safetensors"] = [](const CheckpointStore::ByteSink&) {
    return Error(absl::StatusCode::kInternal, "NOT_FINITE", "a weight is not finite");
  };
  EXPECT_THAT(store_->Save(request), HasReason("NOT_FINITE"));
  EXPECT_THAT(files_.List(kRoot).value(), IsEmpty());
}

TEST_F(CheckpointStoreTest, RefusesRequestsThatCannotBe) {
  CheckpointStore::SaveRequest empty;
  empty.version = {1, 1};
  EXPECT_THAT(store_->Save(empty), HasReason("BAD_CHECKPOINT"));
  auto request = Request({1, 1});
  request.files["../escape"] = "x";
  EXPECT_THAT(store_->Save(request), HasReason("BAD_NAME"));
  request = Request({1, 1});
  request.files["manifest.json"] = "x";
  EXPECT_THAT(store_->Save(request), HasReason("BAD_CHECKPOINT"));
  request = Request({1, 1});
  request.metadata["note"] = "\xff";
  EXPECT_THAT(store_->Save(request), HasReason("BAD_CHECKPOINT"));
  EXPECT_THAT(files_.List(kRoot).value(), IsEmpty());
}

TEST_F(CheckpointStoreTest, SavesAVersionOnce) {
  Save({1, 1});
  auto request = Request({1, 1});
  request.files["data.pb"] = "something else";
  EXPECT_THAT(store_->Save(request), IsOk());
  auto latest = store_->LoadLatest();
  EXPECT_EQ(store_->ReadFile(latest->checkpoint, "data.pb").value(), "position e1-s1");
}

TEST_F(CheckpointStoreTest, ReplacesADamagedCheckpointOfTheSameVersion) {
  Save({1, 1});
  ASSERT_THAT(files_.FlipBits(Path({1, 1}, "data.pb"), 0, 1), IsOk());
  Save({1, 1});
  EXPECT_THAT(store_->Verify({1, 1}), IsOk());
  EXPECT_THAT(files_.List(kRoot).value(), ElementsAre("e1-s1"));
}

TEST_F(CheckpointStoreTest, SkipsDamagedOnesAndSaysWhatIsWrongWithEach) {
  for (int64_t step = 1; step <= 4; ++step) Save({1, step});
  ASSERT_THAT(files_.FlipBits(Path({1, 4}, "model.safetensors"), 5000, 1), IsOk());
  ASSERT_THAT(files_.RemoveTree(Path({1, 3}, "data.pb")), IsOk());
  ASSERT_THAT(files_.CutFile(Path({1, 2}, "manifest.json"), 10), IsOk());
  auto latest = store_->LoadLatest();
  ASSERT_THAT(latest, IsOk());
  EXPECT_EQ(latest->checkpoint.version, (PolicyVersion{1, 1}));
  ASSERT_THAT(latest->skipped, SizeIs(3));
  EXPECT_EQ(latest->skipped[0].name, "e1-s4");
  EXPECT_THAT(latest->skipped[0].why, HasMessage(HasSubstr("SHA-256 of /run/checkpoints/e1-s4/model.safetensors")));
  EXPECT_THAT(latest->skipped[1].why, HasMessage(HasSubstr("e1-s3/data.pb")));
  EXPECT_THAT(latest->skipped[2].why, HasMessage(HasSubstr("manifest.json")));
}

TEST_F(CheckpointStoreTest, NamesAllDamagedOnesIfNoneIsWhole) {
  Save({1, 1});
  Save({1, 2});
  ASSERT_THAT(files_.CutFile(Path({1, 1}, "data.pb"), 1), IsOk());
  ASSERT_THAT(files_.CutFile(Path({1, 2}, "data.pb"), 1), IsOk());
  EXPECT_THAT(store_->LoadLatest(), HasReason("CHECKPOINTS_DAMAGED"));
  EXPECT_THAT(store_->LoadLatest(), HasMessage(HasSubstr("e1-s2/data.pb has 1 bytes and should have 14")));
}

TEST_F(CheckpointStoreTest, DoesNotGoBackInTimeBecauseOfACheckpointOfANewerRelease) {
  Save({1, 1});
  Save({1, 2});
  ASSERT_THAT(files_.PutFile(Path({1, 2}, "manifest.json"), R"({"format": "syncopate-checkpoint-3"})"), IsOk());
  EXPECT_THAT(store_->LoadLatest(), HasReason("CHECKPOINT_VERSION"));
}

TEST_F(CheckpointStoreTest, CatchesAFolderThatWasRenamedByHand) {
  Save({1, 1});
  ASSERT_THAT(files_.Rename(JoinPath(kRoot, "e1-s1"), JoinPath(kRoot, "e9-s9")), IsOk());
  EXPECT_THAT(store_->Verify({9, 9}), HasMessage(HasSubstr("is of version e1-s1")));
}

TEST_F(CheckpointStoreTest, CatchesEveryFlippedByteOfTheManifest) {
  Save({1, 1});
  std::string path = Path({1, 1}, "manifest.json");
  int64_t size = files_.FileBytes(path).value();
  for (int64_t at = 0; at < size; ++at) {
    ASSERT_THAT(files_.FlipBits(path, at, 0x01), IsOk());
    EXPECT_FALSE(store_->Verify({1, 1}).ok()) << "byte " << at;
    ASSERT_THAT(files_.FlipBits(path, at, 0x01), IsOk());
  }
  EXPECT_THAT(store_->Verify({1, 1}), IsOk());
}

TEST_F(CheckpointStoreTest, CatchesATruncationAndAFlipInEachPageOfEachFile) {
  Save({1, 1});
  for (const std::string file : {"data.pb", "model.safetensors", "manifest.json"}) {
    std::string path = Path({1, 1}, file);
    std::string whole = ReadFile(&files_, path, 1 << 20).value();
    for (int64_t page = 0; page * kPageBytes < static_cast<int64_t>(whole.size()); ++page) {
      ASSERT_THAT(files_.CutFile(path, page * kPageBytes), IsOk());
      EXPECT_THAT(store_->Verify({1, 1}), HasReason("CHECKPOINT_DAMAGED")) << file << " cut at page " << page;
      ASSERT_THAT(files_.PutFile(path, whole), IsOk());
      ASSERT_THAT(files_.FlipBits(path, page * kPageBytes, 0x80), IsOk());
      EXPECT_THAT(store_->Verify({1, 1}), HasReason("CHECKPOINT_DAMAGED")) << file << " flipped in page " << page;
      ASSERT_THAT(files_.PutFile(path, whole), IsOk());
    }
  }
}

TEST_F(CheckpointStoreTest, ChecksAFileAgainAsItIsRead) {
  Save({1, 1});
  auto latest = store_->LoadLatest();
  ASSERT_THAT(files_.FlipBits(Path({1, 1}, "data.pb"), 0, 1), IsOk());
  EXPECT_THAT(store_->ReadFile(latest->checkpoint, "data.pb"), HasReason("CHECKPOINT_DAMAGED"));
  EXPECT_THAT(store_->ReadFile(latest->checkpoint, "none"), HasReason("CHECKPOINT_DAMAGED"));
}

TEST_F(CheckpointStoreTest, KeepsTheHighestWhenItPrunes) {
  for (int64_t step = 1; step <= 5; ++step) Save({1, step});
  EXPECT_THAT(store_->Prune(2).value(), SizeIs(3));
  EXPECT_THAT(files_.List(kRoot).value(), ElementsAre("e1-s4", "e1-s5"));
  EXPECT_THAT(store_->Prune(2).value(), IsEmpty());
}

TEST_F(CheckpointStoreTest, CountsOnlyCheckpointsThatVerifyWhenItPrunes) {
  for (int64_t step = 1; step <= 4; ++step) Save({1, step});
  ASSERT_THAT(files_.FlipBits(Path({1, 4}, "data.pb"), 0, 1), IsOk());
  EXPECT_THAT(store_->Prune(2).value(), ElementsAre(PolicyVersion{1, 1}));
  ASSERT_THAT(files_.FlipBits(Path({1, 3}, "data.pb"), 0, 1), IsOk());
  EXPECT_THAT(store_->Prune(2).value(), IsEmpty()) << "one whole checkpoint is left: pruning must not delete it";
  EXPECT_THAT(store_->Prune(1), HasReason("BAD_OPTIONS"));
}

TEST_F(CheckpointStoreTest, LeavesTheLastOneUntouchedWhenTheDiskIsFull) {
  Save({1, 1});
  files_.SetCapacity(18000);
  EXPECT_THAT(store_->Save(Request({1, 2})), HasReason("NO_SPACE"));
  EXPECT_EQ(store_->LoadLatest()->checkpoint.version, (PolicyVersion{1, 1}));
  EXPECT_THAT(files_.List(kRoot).value(), ElementsAre("e1-s1")) << "the space is freed";
  files_.SetCapacity(1 << 20);
  Save({1, 2});
  EXPECT_EQ(store_->LoadLatest()->checkpoint.version, (PolicyVersion{1, 2}));
}

TEST_F(CheckpointStoreTest, EndsASaveThatOnlyLackedItsLastSync) {
  FaultyFileSystem probe;
  auto store = MustOpen(&probe);
  int64_t before = probe.operations();
  ASSERT_THAT(store->Save(Request({1, 1})), IsOk());
  int64_t last_sync = probe.operations() - before - 1;
  files_.FailOperations(files_.operations() + last_sync, 1, Fault::kIoError);
  EXPECT_THAT(store_->Save(Request({1, 1})), HasReason("IO_ERROR"));
  EXPECT_THAT(store_->Save(Request({1, 1})), IsOk());
  files_.Restart(Survives::kSynced);
  EXPECT_EQ(store_->LoadLatest()->checkpoint.version, (PolicyVersion{1, 1}));
}

TEST_F(CheckpointStoreTest, NeverLosesTheLastOneToAFailureOfAnyOperation) {
  for (Fault fault : {Fault::kIoError, Fault::kNoSpace, Fault::kPermission}) {
    bool saved = false;
    for (int64_t at = 0; !saved; ++at) {
      FaultyFileSystem files;
      auto store = MustOpen(&files);
      ASSERT_THAT(store->Save(Request({1, 1})), IsOk());
      files.FailOperations(files.operations() + at, 2, fault);
      saved = store->Save(Request({1, 2})).ok();
      files.FailOperations(-1, 0, fault);
      files.Restart(Survives::kSynced);
      auto latest = MustOpen(&files)->LoadLatest();
      ASSERT_THAT(latest, IsOk());
      EXPECT_THAT(latest->skipped, IsEmpty());
      if (saved) {
        EXPECT_EQ(latest->checkpoint.version.step, 2);
      }
    }
  }
}

// Saves a second checkpoint beside a first one and prunes an earlier one, dies at operation `crash_at`, and checks the
// remaining files. Returns false if no crash happened.
bool CrashOnce(int64_t crash_at, Survives survives) {
  FaultyFileSystem files;
  auto store = MustOpen(&files);
  for (int64_t step = 0; step <= 1; ++step) EXPECT_THAT(store->Save(Request({1, step})), IsOk());
  files.CrashAtOperation(files.operations() + crash_at);
  bool saved = store->Save(Request({1, 2})).ok();
  bool pruned = saved && store->Prune(2).ok();
  files.Restart(survives, static_cast<uint64_t>(crash_at));

  auto reopened = MustOpen(&files);
  auto latest = reopened->LoadLatest();
  EXPECT_THAT(latest, IsOk()) << "crash at " << crash_at;
  if (!latest.ok()) return !pruned;
  EXPECT_THAT(latest->skipped, IsEmpty()) << "crash at " << crash_at << " left half a checkpoint";
  PolicyVersion version = latest->checkpoint.version;
  EXPECT_TRUE(version.step == 2 || (version.step == 1 && !saved)) << "crash at " << crash_at;
  EXPECT_EQ(reopened->ReadFile(latest->checkpoint, "model.safetensors").value(), ModelBytes(version));
  std::vector<PolicyVersion> listed = reopened->List().value();
  EXPECT_THAT(files.List(kRoot).value(), SizeIs(listed.size())) << "something temporary is left";
  EXPECT_GE(listed.size(), 2u);
  for (PolicyVersion each : listed) EXPECT_THAT(reopened->Verify(each), IsOk()) << "crash at " << crash_at;
  return !pruned;
}

TEST(CheckpointStoreCrashTest, FindsTheOldOrTheNewCheckpointAfterACrashAtAnyOperation) {
  for (Survives survives : {Survives::kEverything, Survives::kSynced, Survives::kSome}) {
    int64_t crash_at = 0;
    while (CrashOnce(crash_at, survives)) ++crash_at;
    EXPECT_GT(crash_at, 12) << "the crash points were not reached";
  }
}

// Acts as one of two ranks: rank 1 writes before rank 0 writes anything, or after.
enum class Turn { kFirst, kSecond };

CheckpointStore::SaveRequest RanksRequest(CheckpointStore* store, PolicyVersion version, Turn of_rank1) {
  CheckpointStore::SaveRequest request = Request(version);
  request.ranks = 2;
  const absl::StatusOr<std::string> folder = store->BeginFolder(version);
  request.folder = folder.value_or("none");
  auto write = [store, version, folder]() -> absl::StatusOr<CheckpointStore::Files> {
    SYNCOPATE_RETURN_IF_ERROR(folder.status());
    return CheckpointStore::WriteFiles(store->files(), JoinPath(kRoot, *folder),
                                       {{"shard.safetensors", ModelBytes(version)}});
  };
  if (of_rank1 == Turn::kSecond) {
    request.await_others = write;
  } else {
    request.await_others = [written = write()] { return written; };
  }
  return request;
}

TEST_F(CheckpointStoreTest, WhatAllRanksHaveWrittenIsOneCheckpoint) {
  ASSERT_THAT(store_->Save(RanksRequest(store_.get(), {1, 5}, Turn::kSecond)), IsOk());
  const auto checkpoint = store_->Verify({1, 5});
  ASSERT_THAT(checkpoint, IsOk());
  EXPECT_EQ(checkpoint->ranks, 2);
  EXPECT_THAT(checkpoint->files, SizeIs(3));
  EXPECT_EQ(store_->ReadFile(*checkpoint, "shard.safetensors").value(), ModelBytes({1, 5}));
  ASSERT_THAT(files_.FlipBits(Path({1, 5}, "shard.safetensors"), 9000, 1), IsOk());
  EXPECT_THAT(store_->Verify({1, 5}), HasReason("CHECKPOINT_DAMAGED"));
}

TEST_F(CheckpointStoreTest, TheSameVersionAgainIsWaitedForAndLeavesNothing) {
  ASSERT_THAT(store_->Save(RanksRequest(store_.get(), {1, 5}, Turn::kSecond)), IsOk());
  ASSERT_THAT(store_->Save(RanksRequest(store_.get(), {1, 5}, Turn::kSecond)), IsOk());
  EXPECT_THAT(files_.List(kRoot).value(), ElementsAre("e1-s5"));
}

TEST_F(CheckpointStoreTest, ARankThatCannotWriteIsTheReasonAndNothingIsLeft) {
  Save({1, 4});
  CheckpointStore::SaveRequest request = RanksRequest(store_.get(), {1, 5}, Turn::kSecond);
  request.await_others = [] {
    return Error(absl::StatusCode::kResourceExhausted, "NO_SPACE", "trainer rank 1: no space left");
  };
  const absl::Status status = store_->Save(request);
  EXPECT_THAT(status, HasReason("NO_SPACE"));
  EXPECT_THAT(status, HasMessage(HasSubstr("trainer rank 1")));
  EXPECT_THAT(files_.List(kRoot).value(), ElementsAre("e1-s4"));
}

TEST_F(CheckpointStoreTest, OthersAreWaitedForBeforeTheFolderGoes) {
  CheckpointStore::SaveRequest request = RanksRequest(store_.get(), {1, 5}, Turn::kSecond);
  request.files["model.safetensors"] = [](const CheckpointStore::ByteSink&) { return absl::InternalError("no"); };
  bool waited = false;
  request.await_others = [&, folder = request.folder]() -> absl::StatusOr<CheckpointStore::Files> {
    waited = files_.List(JoinPath(kRoot, folder)).ok();
    return CheckpointStore::Files();
  };
  EXPECT_EQ(store_->Save(request).code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(waited);
  EXPECT_THAT(files_.List(kRoot).value(), IsEmpty());
}

TEST_F(CheckpointStoreTest, ARankThatWritesToAnotherDiskIsNoticed) {
  CheckpointStore::SaveRequest request = RanksRequest(store_.get(), {1, 5}, Turn::kSecond);
  request.await_others = [] { return CheckpointStore::Files{{"shard.safetensors", {5, std::string(64, 'a')}}}; };
  EXPECT_THAT(store_->Save(request), HasReason("FOLDER_NOT_SHARED"));
  EXPECT_THAT(files_.List(kRoot).value(), IsEmpty());
}

// Does what CrashOnce does, with two ranks.
bool CrashTwoRanksOnce(int64_t crash_at, Survives survives, Turn of_rank1) {
  FaultyFileSystem files;
  auto store = MustOpen(&files);
  EXPECT_THAT(store->Save(Request({1, 1})), IsOk());
  files.CrashAtOperation(files.operations() + crash_at);
  const bool saved = store->Save(RanksRequest(store.get(), {1, 2}, of_rank1)).ok();
  files.Restart(survives, static_cast<uint64_t>(crash_at));
  auto reopened = MustOpen(&files);
  const auto latest = reopened->LoadLatest();
  EXPECT_THAT(latest, IsOk()) << "crash at " << crash_at;
  if (!latest.ok()) return !saved;
  EXPECT_THAT(latest->skipped, IsEmpty()) << "crash at " << crash_at << " left half a checkpoint";
  const PolicyVersion version = latest->checkpoint.version;
  EXPECT_TRUE(version.step == 2 || (version.step == 1 && !saved)) << "crash at " << crash_at;
  if (version.step == 2) {
    EXPECT_EQ(reopened->ReadFile(latest->checkpoint, "shard.safetensors").value(), ModelBytes(version));
  }
  EXPECT_THAT(files.List(kRoot).value(), SizeIs(reopened->List().value().size())) << "something temporary is left";
  return !saved;
}

TEST(CheckpointStoreCrashTest, FindsTheOldOrTheNewCheckpointOfTwoRanksAfterACrashAtAnyOperationOfEither) {
  for (Turn turn : {Turn::kFirst, Turn::kSecond}) {
    for (Survives survives : {Survives::kEverything, Survives::kSynced, Survives::kSome}) {
      int64_t crash_at = 0;
      while (CrashTwoRanksOnce(crash_at, survives, turn)) ++crash_at;
      EXPECT_GT(crash_at, 14) << "the crash points were not reached";
    }
  }
}

}  // namespace
}  // namespace syncopate::trainer
