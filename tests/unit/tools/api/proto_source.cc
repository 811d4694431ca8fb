#include "tests/unit/tools/api/proto_source.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "tests/support/process.h"

namespace syncopate::api {
namespace {

constexpr int64_t kMaxBytes = 1 << 20;

// Runs protoc in `folder` on the file `name` there. Returns "" or the error.
std::string RunProtoc(const std::string& folder, const std::string& name) {
  const std::string log = folder + "/log";
  auto protoc = testing::Process::Start({.program = SYNCOPATE_PROTOC,
                                         .args = {"-I", folder, "--include_imports", "--include_source_info",
                                                  "--descriptor_set_out", folder + "/set", name},
                                         .log_path = log});
  if (!protoc.ok()) return protoc.status().ToString();
  auto exit = (*protoc)->WaitExit(absl::Minutes(1));
  if (!exit.ok()) return exit.status().ToString();
  return exit->code == 0 && exit->signal == 0 ? "" : "protoc: " + (*protoc)->Log();
}

}  // namespace

google::protobuf::FileDescriptorSet Compile(const std::vector<ProtoFile>& files) {
  testing::TempDir folder;
  for (const ProtoFile& file : files) {
    const std::filesystem::path path = std::filesystem::path(folder.path()) / file.name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << file.source;
  }
  EXPECT_EQ(RunProtoc(folder.path(), files.back().name), "");
  google::protobuf::FileDescriptorSet set;
  EXPECT_TRUE(set.ParseFromString(ReadFile(FileSystem::Real(), folder.path() + "/set", kMaxBytes).value_or("")));
  return set;
}

ApiDescriptors Api(const std::string& source, const std::string& name) {
  auto api = ApiDescriptors::From(
      Compile({{name, absl::StrCat("// A file.\nsyntax = \"proto3\";\npackage syncopate.v1;\n", source)}}));
  EXPECT_TRUE(api.ok()) << api.status();
  return *std::move(api);
}

}  // namespace syncopate::api
