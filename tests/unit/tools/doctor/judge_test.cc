#include "tools/doctor/judge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "services/config/run_config.h"

namespace syncopate::doctor {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Level = Finding::Level;

constexpr int64_t kGiB = int64_t{1} << 30;

v1::RunConfig Config(const std::vector<std::string>& overrides = {}) {
  return config::ParseRunConfig("", "f", overrides).config;
}

// A machine on which the default configuration has no finding.
Machine GoodMachine() {
  Machine machine;
  machine.processors = 8;
  machine.memory_bytes = machine.available_bytes = 16 * kGiB;
  machine.open_files = 1024;
  machine.open_files_hard = 524288;
  machine.shared_memory_bytes = 8 * kGiB;
  machine.clock_synchronised = true;
  machine.now = absl::FromUnixSeconds(1'800'000'000);
  machine.run_folder = {"/data", absl::OkStatus(), "ext4", 100 * kGiB, absl::Milliseconds(1)};
  machine.addresses = {{"trainer.listen", "127.0.0.1:7070", absl::OkStatus()}};
  machine.programs = {{"/usr/bin/syncopate-trainer", absl::OkStatus()}};
  machine.gpu.library = absl::NotFoundError("no libcuda.so.1");
  machine.credentials = {{"trainer", absl::OkStatus(), machine.now + absl::Hours(24 * 90)}};
  return machine;
}

std::vector<Finding> Complaints(const Machine& machine, const v1::RunConfig& config) {
  std::vector<Finding> complaints;
  for (const Finding& finding : Judge(machine, config)) {
    if (finding.level != Level::kGood) complaints.push_back(finding);
  }
  return complaints;
}

TEST(JudgeTest, SaysOfEverythingThatItLookedAtWhatItFound) {
  const std::vector<Finding> findings = Judge(GoodMachine(), Config());
  EXPECT_EQ(findings.size(), 14u);
  EXPECT_THAT(findings, Each(Field(&Finding::level, Level::kGood)));
  EXPECT_THAT(findings, Each(Field(&Finding::remedy, IsEmpty())));
  EXPECT_THAT(findings, Each(Field(&Finding::looked_at, Not(IsEmpty()))));
  EXPECT_THAT(findings, Each(Field(&Finding::found, Not(IsEmpty()))));
}

struct Case {
  const char* name;
  std::function<void(Machine*)> change;
  Level level;
  const char* subject;
  const char* found;
  const char* remedy;
  std::vector<std::string> overrides = {};
};

class ComplaintTest : public ::testing::TestWithParam<Case> {};

TEST_P(ComplaintTest, IsTheOnlyOneAndSaysHowToMendIt) {
  Machine machine = GoodMachine();
  GetParam().change(&machine);
  const std::vector<Finding> complaints = Complaints(machine, Config(GetParam().overrides));
  ASSERT_EQ(complaints.size(), 1u) << ToText(complaints);
  EXPECT_EQ(complaints[0].level, GetParam().level);
  EXPECT_EQ(complaints[0].subject, GetParam().subject);
  EXPECT_THAT(complaints[0].found, HasSubstr(GetParam().found));
  EXPECT_THAT(complaints[0].remedy, HasSubstr(GetParam().remedy));
}

INSTANTIATE_TEST_SUITE_P(
    Facts, ComplaintTest,
    ::testing::Values(
        Case{"OneProcessor", [](Machine* m) { m->processors = 1; }, Level::kWarning, "processors", "1 usable",
             "run.rollouters"},
        Case{"AQuota", [](Machine* m) { m->processor_quota = 0.5; }, Level::kWarning, "processors", "quota of 0.5",
             "more processors"},
        Case{"ManyRollouters",
             [](Machine*) {},
             Level::kWarning,
             "processors",
             "8 usable",
             "need 31",
             {"run.rollouters=30"}},
        Case{"LittleMemory", [](Machine* m) { m->available_bytes = kGiB / 2; }, Level::kBad, "memory",
             "0.5 GiB available of 16.0 GiB", "3 processes, need 0.8 GiB"},
        Case{"LittleMemoryForSwaps",
             [](Machine*) {},
             Level::kBad,
             "memory",
             "16.0 GiB available",
             "need 17.2 GiB (16.0 GiB of it for rollout.host_kv_memory of all ranks)",
             {"rollout.host_kv_memory=4", "run.rollouters=2", "rollout.tensor_parallel=2"}},
        Case{"FewFiles", [](Machine* m) { m->open_files = m->open_files_hard = 1024; }, Level::kWarning, "open files",
             "hard 1024", "ulimit -n 4096"},
        Case{"HardlyAnyFiles", [](Machine* m) { m->open_files = 64; }, Level::kBad, "open files", "soft 64",
             "ulimit -n 4096"},
        Case{"FewTasks", [](Machine* m) { m->tasks = 100; }, Level::kWarning, "threads", "at most 100", "podPidsLimit"},
        Case{"AWildClock", [](Machine* m) { m->clock_synchronised = false; }, Level::kWarning, "clock",
             "not synchronised", "chrony"},
        Case{"AReadOnlyFolder", [](Machine* m) { m->run_folder.writable = absl::PermissionDeniedError("read-only"); },
             Level::kBad, "run directory", "read-only", "run.dir"},
        Case{"AFolderInMemory", [](Machine* m) { m->run_folder.file_system = "tmpfs"; }, Level::kWarning, "durability",
             "tmpfs", "reboot"},
        Case{"AFullDisk", [](Machine* m) { m->run_folder.free_bytes = 1000; }, Level::kBad, "disk space", "0.0 GiB",
             "free some"},
        Case{"ASlowDisk", [](Machine* m) { m->run_folder.sync = absl::Milliseconds(80); }, Level::kWarning, "disk sync",
             "80.00 ms", "acknowledgement"},
        Case{"ATakenPort",
             [](Machine* m) { m->addresses[0].status = absl::UnavailableError("Address already in use"); }, Level::kBad,
             "address", "already in use", "trainer.listen"},
        Case{"AMissingProgram", [](Machine* m) { m->programs[0].status = absl::NotFoundError("it is not there"); },
             Level::kBad, "program", "not there", "one folder"},
        Case{"NoGpuForOne",
             [](Machine*) {},
             Level::kBad,
             "GPUs",
             "no libcuda.so.1",
             "nvidia-container-toolkit",
             {"rollout.device=cuda:0"}},
        Case{"TooFewGpus",
             [](Machine* m) {
               m->gpu.gpus = {{"NVIDIA H200", 141 * kGiB}};
             },
             Level::kBad,
             "GPUs",
             "NVIDIA H200 of 141.0 GiB",
             "names a GPU that is not here",
             {"train.device=cuda:1"}},
        Case{"FewerGpusThanRanks",
             [](Machine* m) {
               m->gpu.gpus = {{"NVIDIA H200", 141 * kGiB}};
             },
             Level::kBad,
             "GPUs",
             "NVIDIA H200 of 141.0 GiB",
             "more ranks than GPUs",
             {"train.device=cuda", "trainer.world=2"}},
        Case{"ADriverWithoutItsLibrary", [](Machine* m) { m->gpu.kernel_driver = "580.65.06"; }, Level::kWarning,
             "GPUs", "driver 580.65.06", "same version"},
        Case{"LittleSharedMemory",
             [](Machine* m) {
               m->shared_memory_bytes = 64 << 20;
               m->gpu.gpus = {{"NVIDIA H200", 141 * kGiB}};
             },
             Level::kWarning,
             "shared memory",
             "0.1 GiB",
             "--shm-size",
             {"train.device=cuda"}},
        Case{"ABadCertificate",
             [](Machine* m) { m->credentials[0].status = absl::InvalidArgumentError("tls.key may be read by others"); },
             Level::kBad, "credentials", "read by others", "make-certs.sh"},
        Case{"ACertificateThatEndsSoon", [](Machine* m) { m->credentials[0].expiry = m->now + absl::Hours(48); },
             Level::kWarning, "credentials", "until 2027-01-17", "renew"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(FindingTest, TextHasAPlaceForEachAndCounts) {
  EXPECT_EQ(ToText({{Level::kGood, "clock", "adjtimex", "synchronised", ""},
                    {Level::kBad, "memory", "MemAvailable", "0.1 GiB", "free memory"}}),
            "good     clock: synchronised (adjtimex)\n"
            "bad      memory: 0.1 GiB (MemAvailable)\n"
            "         -> free memory\n"
            "2 looked at, 1 bad, 0 warnings\n");
}

TEST(FindingTest, JsonHasAnObjectALine) {
  const auto line = nlohmann::json::parse(ToJsonLines({{Level::kWarning, "a", "b", "c\"\n", "d"}}));
  EXPECT_EQ(line, nlohmann::json::parse(
                      R"({"level": "warning", "subject": "a", "looked_at": "b", "found": "c\"\n", "remedy": "d"})"));
}

}  // namespace
}  // namespace syncopate::doctor
