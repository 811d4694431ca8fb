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

// A program of its own, made of a shell script.
std::string Script(const TempDir& folder, const std::string& body) {
  const std::string path = folder.path() + "/program";
  std::ofstream(path) << "#!/bin/sh\n" << body << "\n";
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path;
}

TEST(LookAtLimitsTest, ReadsWhatThisMachineSays) {
  Machine machine;
  LookAtLimits(&machine);
  EXPECT_GE(machine.processors, 1);
  EXPECT_GT(machine.memory_bytes, machine.available_bytes);
  EXPECT_GT(machine.available_bytes, 0);
  EXPECT_GT(machine.open_files, 0);
  EXPECT_GE(machine.open_files_hard, machine.open_files);
}

TEST(LookAtFolderTest, TriesTheNearestFolderThatExistsAndLeavesNothingBehind) {
  TempDir folder;
  const FolderFacts facts = LookAtFolder(folder.path() + "/runs/of/tomorrow");
  EXPECT_EQ(facts.path, folder.path());
  EXPECT_THAT(facts.writable, IsOk());
  EXPECT_GT(facts.free_bytes, 0);
  EXPECT_GT(facts.sync, absl::ZeroDuration());
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(LookAtFolderTest, SaysWhyAFolderCannotBeWrittenIn) {
  EXPECT_THAT(LookAtFolder("/proc").writable, HasMessage(HasSubstr("/proc")));
}

TEST(LookAtAddressTest, TriesTheAddress) {
  EXPECT_THAT(LookAtAddress("k", absl::StrCat("127.0.0.1:", FreePort().value()), true).status, IsOk());
  EXPECT_THAT(LookAtAddress("k", "192.0.2.1:7070", true).status, HasReason("ADDRESS_UNUSABLE"))
      << "an address of documentation, of no machine";
  EXPECT_THAT(LookAtAddress("k", "192.0.2.1:7070", false).status, IsOk());
  EXPECT_THAT(LookAtAddress("k", "no-such-name.invalid:7070", false).status, HasMessage(HasSubstr("no-such-name")));
}

TEST(LookAtProgramTest, SaysWhatAProgramSaysThatDoesNotStart) {
  TempDir folder;
  EXPECT_THAT(LookAtProgram(Script(folder, "exit 0")).status, IsOk());
  EXPECT_THAT(LookAtProgram(Script(folder, "echo libtorch.so: not found >&2; exit 127")).status,
              HasMessage(HasSubstr("libtorch.so: not found")));
  EXPECT_THAT(LookAtProgram(folder.path() + "/absent").status, HasMessage(HasSubstr("not there")));
}

TEST(LookAtGpusTest, SaysWhyThereIsNone) {
  const GpuFacts facts = LookAtGpus();
  EXPECT_EQ(facts.library.ok(), !facts.gpus.empty());
  for (const Gpu& gpu : facts.gpus) EXPECT_GT(gpu.bytes, 0) << gpu.name;
}

}  // namespace
}  // namespace syncopate::doctor
