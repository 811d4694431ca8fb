#include "trainer/checkpoint/export_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/adapter_files.h"
#include "model/hf_config.h"
#include "model/safetensors.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/golden_models.h"
#include "tests/support/rank_threads.h"
#include "tests/support/small_model.h"
#include "tests/support/status_matchers.h"
#include "trainer/checkpoint/policy_files.h"
#include "trainer/step/policy_trainer.h"

namespace syncopate::trainer {
namespace {

using syncopate::testing::FaultyFileSystem;
using syncopate::testing::HasReason;
using syncopate::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Snapshot = std::shared_ptr<const PolicySnapshot>;

constexpr int64_t kLargest = 1 << 24;

std::string Description() { return testing::GoldenModelPath("llama3-tied"); }

std::unique_ptr<PolicyTrainer> MakePolicy(Communicator& ranks, bool adapters = false) {
  PolicyTrainer::Options options;
  options.model = model::ReadHfConfig(Description()).value().config;
  if (adapters) {
    options.model = testing::WithAdapters(options.model);
    options.adapter_config = model::FormatAdapterConfig(options.model.lora, "models/base");
  }
  options.seed = 4;
  options.mesh = ranks;
  return PolicyTrainer::Create(options).value();
}

// The weights of a single rank.
Snapshot WeightsOfOne(bool adapters = false) {
  SingleRank single;
  return MakePolicy(single, adapters)->TakeWeights("").value();
}

std::map<std::string, std::string> FilesIn(FileSystem* files, const std::string& folder) {
  std::map<std::string, std::string> contents;
  const std::vector<std::string> names = files->List(folder).value();
  for (const std::string& name : names) {
    contents[name] = ReadFile(files, JoinPath(folder, name), kLargest).value();
  }
  return contents;
}

class ExportStoreTest : public ::testing::Test {
 protected:
  ExportStoreTest() { std::filesystem::remove_all(root_); }
  ~ExportStoreTest() override { std::filesystem::remove_all(root_); }

  const std::string root_ = JoinPath(::testing::TempDir(), absl::StrCat("exports-", ::getpid()));
};

// The parameter: whether adapters alone are trained and exported, or all weights.
class ExportStoreRanksTest : public ExportStoreTest, public ::testing::WithParamInterface<bool> {};

TEST_P(ExportStoreRanksTest, SeveralRanksWriteTheFilesThatOneWrites) {
  const bool adapters = GetParam();
  FileSystem* const real = FileSystem::Real();
  const auto store = ExportStore::Open(real, {.root = root_, .description = Description()}).value();
  const auto alone = store->Write({.name = "1", .snapshot = WeightsOfOne(adapters)});
  ASSERT_THAT(alone, IsOk());
  const auto expected = FilesIn(real, store->GetPath("1"));
  EXPECT_EQ(expected.count(adapters ? model::kAdapterConfigFile : "config.json"), 1u);
  for (const int32_t world : {2, 3}) {
    const std::vector<Snapshot> parts = testing::OnRanks<Snapshot>(
        world, [&](Communicator& ranks) { return MakePolicy(ranks, adapters)->TakeWeights("").value(); });
    const std::string folder = store->BeginFolder({1, 7}).value();
    const auto written =
        store->Write({.name = absl::StrCat(world),
                      .folder = folder,
                      .snapshot = parts[0],
                      .await_others = [&]() -> absl::StatusOr<CheckpointStore::Files> {
                        CheckpointStore::Files all;
                        for (size_t rank = 1; rank < parts.size(); ++rank) {
                          EXPECT_FALSE(parts[rank]->has_moments());
                          SYNCOPATE_ASSIGN_OR_RETURN(
                              const auto files,
                              CheckpointStore::WriteFiles(real, JoinPath(root_, folder), PolicyFiles(parts[rank])));
                          all.insert(files.begin(), files.end());
                        }
                        return all;
                      }});
    ASSERT_THAT(written, IsOk());
    EXPECT_EQ(written->bytes, alone->bytes);
    EXPECT_EQ(FilesIn(real, store->GetPath(absl::StrCat(world))), expected) << world << " ranks";
  }
  EXPECT_THAT(real->List(root_).value(), ElementsAre("1", "2", "3"));
}

INSTANTIATE_TEST_SUITE_P(WhatIsTrained, ExportStoreRanksTest, ::testing::Bool());

TEST_F(ExportStoreTest, AdaptersAreWrittenAloneInFloat32WithTheDigestOfTheirBase) {
  FaultyFileSystem disk;
  const auto store = ExportStore::Open(&disk, {.root = "/exports"}).value();  // an export needs no model directory
  const Snapshot weights = WeightsOfOne(/*adapters=*/true);
  const auto written = store->Write({.name = "a", .options = {.dtype = DType::kBFloat16}, .snapshot = weights});
  ASSERT_THAT(written, IsOk());
  const auto files = FilesIn(&disk, "/exports/a");
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files.at(model::kAdapterConfigFile), weights->adapter_config);
  const auto parsed = model::SafetensorsFile::Parse(files.at(model::kAdapterWeightsFile));
  ASSERT_THAT(parsed, IsOk());
  EXPECT_NE(weights->base_digest, 0u);
  EXPECT_EQ(model::FindBaseDigest(parsed->metadata()), weights->base_digest);
  ASSERT_EQ(parsed->tensors().size(), weights->pieces.size());
  int64_t bytes = 0;
  for (size_t i = 0; i < weights->pieces.size(); ++i) {
    const model::StoredTensor& tensor = parsed->tensors()[i];
    EXPECT_EQ(tensor.name, weights->manifest.tensors()[i].name);
    EXPECT_EQ(tensor.data, weights->Bytes(PolicyPart::kParameters, weights->pieces[i])) << tensor.name;
    bytes += static_cast<int64_t>(tensor.data.size());
  }
  EXPECT_EQ(written->bytes, bytes);
}

TEST_F(ExportStoreTest, WhatAnotherRankCouldNotWriteLeavesNothing) {
  FileSystem* const real = FileSystem::Real();
  const auto store = ExportStore::Open(real, {.root = root_, .description = Description()}).value();
  const std::vector<Snapshot> parts =
      testing::OnRanks<Snapshot>(2, [](Communicator& ranks) { return MakePolicy(ranks)->TakeWeights("").value(); });
  auto write = [&](absl::StatusOr<Snapshot> mine, const absl::StatusOr<CheckpointStore::Files>& theirs, bool* awaited) {
    return store
        ->Write({.name = "a",
                 .folder = store->BeginFolder({1, 7}).value(),
                 .snapshot = std::move(mine),
                 .await_others =
                     [&] {
                       *awaited = true;
                       return theirs;
                     }})
        .status();
  };
  bool awaited = false;
  EXPECT_THAT(write(parts[0], Error(absl::StatusCode::kResourceExhausted, "NO_SPACE", "full"), &awaited),
              HasReason("NO_SPACE"));
  EXPECT_TRUE(awaited);
  EXPECT_THAT(write(parts[0], CheckpointStore::Files{{ModelFileName(1, 2), {100, "ab"}}}, &awaited),
              HasReason("FOLDER_NOT_SHARED"));
  // This rank has nothing to write and waits for the other rank all the same.
  awaited = false;
  EXPECT_THAT(write(Error(absl::StatusCode::kResourceExhausted, "OUT_OF_MEMORY", "no room"), CheckpointStore::Files(),
                    &awaited),
              HasReason("OUT_OF_MEMORY"));
  EXPECT_TRUE(awaited);
  EXPECT_THAT(real->List(root_).value(), IsEmpty());
}

TEST_F(ExportStoreTest, AFullDiskLeavesNothing) {
  FaultyFileSystem disk;
  const auto store = ExportStore::Open(&disk, {.root = "/exports", .description = Description()}).value();
  const Snapshot weights = WeightsOfOne();
  disk.SetCapacity(20000);
  EXPECT_THAT(store->Write({.name = "a", .snapshot = weights}), HasReason("NO_SPACE"));
  EXPECT_THAT(disk.List("/exports").value(), IsEmpty());
  disk.SetCapacity(kLargest);
  EXPECT_THAT(store->Write({.name = "a", .snapshot = weights}), IsOk());
  EXPECT_THAT(disk.List("/exports").value(), ElementsAre("a"));
  EXPECT_THAT(store->Write({.name = "a", .snapshot = weights}), HasReason("FOLDER_TAKEN"));
  EXPECT_THAT(disk.List("/exports").value(), ElementsAre("a"));
}

TEST_F(ExportStoreTest, ADeathAtAnyMomentLeavesAWholeExportOrNone) {
  const Snapshot weights = WeightsOfOne();
  std::map<std::string, std::string> whole;
  int64_t operations = 0;
  {
    FaultyFileSystem disk;
    const auto store = ExportStore::Open(&disk, {.root = "/exports", .description = Description()}).value();
    ASSERT_THAT(store->Write({.name = "a", .snapshot = weights}), IsOk());
    whole = FilesIn(&disk, "/exports/a");
    operations = disk.operations();
  }
  ASSERT_GT(operations, 10);
  int64_t kept = 0;
  for (const auto survives : {FaultyFileSystem::Survives::kEverything, FaultyFileSystem::Survives::kSynced}) {
    for (int64_t at = 0; at < operations; ++at) {
      FaultyFileSystem disk;
      const auto store = ExportStore::Open(&disk, {.root = "/exports", .description = Description()}).value();
      disk.CrashAtOperation(at);
      (void)store->Write({.name = "a", .snapshot = weights});
      disk.Restart(survives);
      ASSERT_THAT(ExportStore::Open(&disk, {.root = "/exports", .description = Description()}), IsOk());
      const auto names = disk.List("/exports");
      if (!names.ok() || names->empty()) continue;
      ASSERT_THAT(*names, ElementsAre("a")) << "after operation " << at;
      EXPECT_EQ(FilesIn(&disk, "/exports/a"), whole) << "after operation " << at;
      ++kept;
    }
  }
  EXPECT_GT(kept, 0);
}

}  // namespace
}  // namespace syncopate::trainer
