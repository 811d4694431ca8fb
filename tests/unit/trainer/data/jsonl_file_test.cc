#include "trainer/data/jsonl_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "base/sha256.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/trainer/data/text_files.h"

namespace syncopate::trainer {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using testing::HasMessage;
using testing::HasReason;
using ::testing::HasSubstr;
using testing::IsOk;

class JsonlFileTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<JsonlFile>> OpenText(const std::string& text) {
    return JsonlFile::Open(files_.Write("rows.jsonl", text));
  }
  TextFiles files_;
};

TEST_F(JsonlFileTest, FindsRowsWithTheirLines) {
  const std::string text = "{\"a\": 1}\n\n  \t\r\n{\"b\": 2}\r\n{\"c\": 3}";
  const auto file = OpenText(text);
  ASSERT_THAT(file, IsOk());
  ASSERT_EQ((*file)->rows(), 3);
  EXPECT_EQ(*(*file)->Read(0), "{\"a\": 1}");
  EXPECT_EQ(*(*file)->Read(1), "{\"b\": 2}");
  EXPECT_EQ(*(*file)->Read(2), "{\"c\": 3}");
  EXPECT_THAT((*file)->Where(0), EndsWith("rows.jsonl:1"));
  EXPECT_THAT((*file)->Where(1), EndsWith("rows.jsonl:4"));
  EXPECT_THAT((*file)->Where(2), EndsWith("rows.jsonl:5"));
  EXPECT_EQ((*file)->sha256(), Sha256Hex(text));
  EXPECT_EQ((*file)->bytes(), static_cast<int64_t>(text.size()));
}

TEST_F(JsonlFileTest, FindsRowsThatBlocksCutThrough) {
  std::string text;
  for (int i = 0; i < 40; ++i) absl::StrAppend(&text, std::string(100'000 + i, 'a' + i % 26), "\n");
  const auto file = OpenText(text);
  ASSERT_THAT(file, IsOk());
  ASSERT_EQ((*file)->rows(), 40);
  for (int i = 0; i < 40; ++i) EXPECT_EQ(*(*file)->Read(i), std::string(100'000 + i, 'a' + i % 26));
}

TEST_F(JsonlFileTest, ALineOfAHundredMegabytesIsARowThatIsNotRead) {
  const std::string path = files_.Write("rows.jsonl", "{}\n\"");
  std::filesystem::resize_file(path, 100 << 20);
  files_.Write("tail", "");
  const auto file = JsonlFile::Open(path);
  ASSERT_THAT(file, IsOk());
  ASSERT_EQ((*file)->rows(), 2);
  EXPECT_EQ(*(*file)->Read(0), "{}");
  EXPECT_THAT((*file)->Read(1), HasReason("ROW_TOO_LARGE"));
}

TEST_F(JsonlFileTest, SaysWhichFileCannotBe) {
  EXPECT_THAT(JsonlFile::Open(files_.Path("none")), AllOf(HasReason("NO_SUCH_FILE"), HasMessage(HasSubstr("none"))));
  EXPECT_THAT(JsonlFile::Open(files_.folder()), HasReason("NO_FILE"));
  EXPECT_THAT(OpenText(""), HasReason("EMPTY_FILE"));
  EXPECT_THAT(OpenText("\n \n"), HasReason("EMPTY_FILE"));
  EXPECT_THAT(OpenText("\xef\xbb\xbf{}"), AllOf(HasReason("BYTE_ORDER_MARK"), HasMessage(HasSubstr("sed"))));
  EXPECT_THAT(OpenText(std::string("\xff\xfe{\0}\0", 6)),
              AllOf(HasReason("BYTE_ORDER_MARK"), HasMessage(HasSubstr("iconv"))));
  EXPECT_THAT(OpenText("PAR1\x15\x04"), AllOf(HasReason("PARQUET_FILE"), HasMessage(HasSubstr("data convert"))));
  const std::string pipe = files_.Path("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(JsonlFile::Open(pipe), HasReason("NO_FILE"));  // and does not wait for a writer of the pipe
}

TEST_F(JsonlFileTest, NoticesThatTheFileIsNotWhatItWas) {
  const std::string text = "{\"a\": 1}\n{\"b\": 2}\n";
  const auto changed = [&](const std::string& after) {
    const auto file = OpenText(text).value();
    const auto time = std::filesystem::last_write_time(file->path());
    files_.Write("rows.jsonl", after);
    std::filesystem::last_write_time(file->path(), time);
    return file->Read(1).status();
  };
  EXPECT_THAT(changed("{\"a\": 1}\n"), AllOf(HasReason("DATA_FILE_CHANGED"), HasMessage(HasSubstr("rows.jsonl"))));
  EXPECT_THAT(changed(text + "{}\n"), HasReason("DATA_FILE_CHANGED"));
  EXPECT_THAT(changed("{\"a\": 1}\n{\"b\": 3}\n"),
              AllOf(HasReason("DATA_FILE_CHANGED"), HasMessage(HasSubstr("rows.jsonl:2"))));
  const auto file = OpenText(text).value();
  std::filesystem::last_write_time(file->path(), std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  EXPECT_THAT(file->Read(1), HasReason("DATA_FILE_CHANGED"));
}

TEST_F(JsonlFileTest, AFileThatIsReplacedIsStillTheOneThatWasOpened) {
  const auto file = OpenText("{\"a\": 1}\n").value();
  std::filesystem::rename(files_.Write("other", "{\"b\": 2}\n"), file->path());
  EXPECT_EQ(*file->Read(0), "{\"a\": 1}");
}

TEST_F(JsonlFileTest, FollowsLinks) {
  files_.Write("rows.jsonl", "{}\n");
  std::filesystem::create_symlink("rows.jsonl", files_.Path("link"));
  EXPECT_THAT(JsonlFile::Open(files_.Path("link")), IsOk());
}

}  // namespace
}  // namespace syncopate::trainer
