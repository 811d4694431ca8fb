#include "tools/doctor/looks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/process.h"
#include "tests/support/status_matchers.h"

namespace syncopate::doctor {
namespace {

using ::syncopate::testing::FreePort;
using ::syncopate::testing::HasMessage;
using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;
using ::syncopate::testing::TempDir;
using ::testing::HasSubstr;

// Makes a program from a shell script.
std::string Script(const TempDir& folder, const std::string& body) {
  const std::string path = folder.path() + "/program";
  std::ofstream(path) << "#!/bin/sh\n" << body << "\n";
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path;
}

TEST(InspectLimitsTest, ReadsWhatThisMachineSays) {
  Machine machine;
  InspectLimits(&machine);
  EXPECT_GE(machine.processors, 1);
  EXPECT_GT(machine.memory_bytes, machine.available_bytes);
  EXPECT_GT(machine.available_bytes, 0);
  EXPECT_GT(machine.open_files, 0);
  EXPECT_GE(machine.open_files_hard, machine.open_files);
}

TEST(InspectFolderTest, TriesTheNearestFolderThatExistsAndLeavesNothingBehind) {
  TempDir folder;
  const FolderFacts facts = InspectFolder(folder.path() + "/runs/of/tomorrow");
  EXPECT_EQ(facts.path, folder.path());
  EXPECT_THAT(facts.writable, IsOk());
  EXPECT_GT(facts.free_bytes, 0);
  EXPECT_GT(facts.sync, absl::ZeroDuration());
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(InspectFolderTest, SaysWhyAFolderCannotBeWrittenIn) {
  EXPECT_THAT(InspectFolder("/proc").writable, HasMessage(HasSubstr("/proc")));
}

TEST(InspectAddressTest, TriesTheAddress) {
  EXPECT_THAT(InspectAddress("k", absl::StrCat("127.0.0.1:", FreePort().value()), true).status, IsOk());
  EXPECT_THAT(InspectAddress("k", "192.0.2.1:7070", true).status, HasReason("ADDRESS_UNUSABLE"))
      << "an address reserved for documentation";
  EXPECT_THAT(InspectAddress("k", "192.0.2.1:7070", false).status, IsOk());
  EXPECT_THAT(InspectAddress("k", "no-such-name.invalid:7070", false).status, HasMessage(HasSubstr("no-such-name")));
}

TEST(InspectProgramTest, SaysWhatAProgramSaysThatDoesNotStart) {
  TempDir folder;
  EXPECT_THAT(InspectProgram(Script(folder, "exit 0")).status, IsOk());
  EXPECT_THAT(InspectProgram(Script(folder, "echo libtorch.so: not found >&2; exit 127")).status,
              HasMessage(HasSubstr("libtorch.so: not found")));
  EXPECT_THAT(InspectProgram(folder.path() + "/absent").status, HasMessage(HasSubstr("not there")));
}

TEST(InspectGpusTest, SaysWhyThereIsNone) {
  const GpuFacts facts = InspectGpus();
  EXPECT_EQ(facts.library.ok(), !facts.gpus.empty());
  for (const Gpu& gpu : facts.gpus) EXPECT_GT(gpu.bytes, 0) << gpu.name;
}

}  // namespace
}  // namespace syncopate::doctor
