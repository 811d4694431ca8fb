// No byte of a checkpoint can change without being detected.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>

#include "tests/support/faulty_file_system.h"
#include "tests/support/status_matchers.h"
#include "trainer/checkpoint/checkpoint_store.h"

namespace syncopate::trainer {
namespace {

using ::syncopate::testing::FaultyFileSystem;
using ::syncopate::testing::HasMessage;
using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr char kFolder[] = "/run/checkpoints";
constexpr PolicyVersion kOlder{1, 10};
constexpr PolicyVersion kNewer{1, 20};
const char* const kFiles[] = {"data.pb", "model.safetensors", "optimizer.safetensors", kCheckpointManifestName};

// The files of a real checkpoint by name and kind, so small that each byte can be changed in turn.
CheckpointStore::SaveRequest SmallRequest(PolicyVersion version) {
  CheckpointStore::SaveRequest request;
  request.version = version;
  uint8_t seed = static_cast<uint8_t>(version.step);
  for (auto [name, bytes] : {std::pair("data.pb", 40), {"model.safetensors", 700}, {"optimizer.safetensors", 1400}}) {
    std::string contents(bytes, '\0');
    for (char& byte : contents) byte = static_cast<char>(seed = static_cast<uint8_t>(seed * 29 + 7));
    request.files[name] = contents;
  }
  request.metadata = {{"run_id", "5c0d2a52"}, {"log_sequence", "12"}};
  return request;
}

std::string GetContents(PolicyVersion version, const std::string& file) {
  return std::get<std::string>(SmallRequest(version).files.at(file));
}

class EveryByteTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto store = CheckpointStore::Open(&files_, kFolder);
    ASSERT_THAT(store, IsOk());
    store_ = *std::move(store);
    path_ = JoinPath(JoinPath(kFolder, kNewer.ToString()), GetParam());
  }

  // Calls `check` with each byte of the file that the parameter names changed in turn, in one bit and in all bits.
  template <typename Check>
  void ForEachChange(Check check) {
    const std::string whole = ReadFile(&files_, path_, 1 << 20).value();
    for (size_t at = 0; at < whole.size() && !HasFailure(); ++at) {
      for (const int mask : {1 << (at % 8), 0xff}) {
        SCOPED_TRACE(::testing::Message() << GetParam() << ", byte " << at << " by " << mask);
        ASSERT_THAT(files_.FlipBits(path_, static_cast<int64_t>(at), static_cast<uint8_t>(mask)), IsOk());
        check();
        ASSERT_THAT(files_.FlipBits(path_, static_cast<int64_t>(at), static_cast<uint8_t>(mask)), IsOk());
      }
    }
    EXPECT_THAT(store_->Verify(kNewer), IsOk()) << "all changes were taken back";
  }

  // A changed manifest may look like that of another release, which is refused and not skipped.
  bool LooksLikeAnotherRelease(const absl::Status& status) const {
    return GetParam() == std::string(kCheckpointManifestName) && ErrorReason(status) == "CHECKPOINT_VERSION";
  }

  FaultyFileSystem files_;
  std::unique_ptr<CheckpointStore> store_;
  std::string path_;
};

TEST_P(EveryByteTest, TheOlderCheckpointIsTakenInsteadWhole) {
  ASSERT_THAT(store_->Save(SmallRequest(kOlder)), IsOk());
  ASSERT_THAT(store_->Save(SmallRequest(kNewer)), IsOk());
  ForEachChange([this] {
    auto latest = store_->LoadLatest();
    if (LooksLikeAnotherRelease(latest.status())) return;
    ASSERT_THAT(latest, IsOk());
    EXPECT_EQ(latest->checkpoint.version, kOlder);
    ASSERT_THAT(latest->skipped, SizeIs(1));
    EXPECT_EQ(latest->skipped[0].name, kNewer.ToString());
    EXPECT_THAT(latest->skipped[0].why, HasReason("CHECKPOINT_DAMAGED"));
    for (const auto& [name, unused] : latest->checkpoint.files) {
      EXPECT_EQ(store_->ReadFile(latest->checkpoint, name).value(), GetContents(kOlder, name));
    }
  });
}

TEST_P(EveryByteTest, TheOnlyCheckpointIsRefusedByName) {
  ASSERT_THAT(store_->Save(SmallRequest(kNewer)), IsOk());
  ForEachChange([this] {
    auto latest = store_->LoadLatest();
    if (LooksLikeAnotherRelease(latest.status())) return;
    EXPECT_THAT(latest, HasReason("CHECKPOINTS_DAMAGED"));
    EXPECT_THAT(latest, HasMessage(HasSubstr(kNewer.ToString())));
  });
}

TEST_P(EveryByteTest, AFileThatChangesAfterItWasVerifiedIsRefusedAsItIsRead) {
  ASSERT_THAT(store_->Save(SmallRequest(kNewer)), IsOk());
  auto latest = store_->LoadLatest();
  ASSERT_THAT(latest, IsOk());
  ForEachChange([&] {
    if (GetParam() == std::string(kCheckpointManifestName)) return;  // the manifest is in memory already
    EXPECT_THAT(store_->ReadFile(latest->checkpoint, GetParam()), HasReason("CHECKPOINT_DAMAGED"));
  });
}

INSTANTIATE_TEST_SUITE_P(Files, EveryByteTest, ::testing::ValuesIn(kFiles), [](const auto& info) {
  const std::string name = info.param;
  return name.substr(0, name.find('.'));
});

}  // namespace
}  // namespace syncopate::trainer
