#pragma once

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "tests/support/process.h"
#include "trainer/data/text_source.h"

namespace syncopate::trainer {

// A folder with a tokenizer, perhaps a chat template, and data files.
class TextFiles {
 public:
  TextFiles() {
    std::filesystem::copy(JoinPath(SYNCOPATE_SOURCE_DIR, "tests/unit/text/tokenizer/golden/qwen2/tokenizer.json"),
                          Path("tokenizer.json"));
  }

  std::string Path(const std::string& name) const { return JoinPath(folder_.path(), name); }
  const std::string& folder() const { return folder_.path(); }

  std::string Write(const std::string& name, const std::string& contents) const {
    std::ofstream(Path(name), std::ios::binary) << contents;
    return Path(name);
  }
  void WriteTemplate() const {
    Write("chat_template.jinja",
          "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
          "{% if add_generation_prompt %}<assistant{{ ' thinks' if enable_thinking }}>{% endif %}");
  }

  std::shared_ptr<const PromptWriter> Writer(PromptWriter::Options options = {}) const {
    return PromptWriter::Load(FileSystem::Real(), folder(), std::move(options)).value();
  }
  TextRows Rows(const std::vector<std::string>& paths, PromptWriter::Options options = {}) const {
    TextRows rows;
    for (const std::string& path : paths) rows.files.push_back({JsonlFile::Open(path).value()});
    rows.writer = Writer(std::move(options));
    return rows;
  }
  // `count` rows {"prompt": "<name> <i>"}.
  std::string WriteRows(const std::string& name, int count) const {
    std::string text;
    for (int i = 0; i < count; ++i) absl::StrAppend(&text, "{\"prompt\": \"", name, " ", i, "\"}\n");
    return Write(name, text);
  }

 private:
  testing::TempDir folder_;
};

}  // namespace syncopate::trainer
