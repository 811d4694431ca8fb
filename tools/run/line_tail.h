#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace syncopate::run {

// Follows a text file that another process appends to. Not thread-safe.
class LineTail {
 public:
  // Begins at the end that the file has now; at its beginning if it does not exist yet.
  explicit LineTail(std::string path);

  // The whole lines that were added since the last call, without their ends; at most 1 MiB of them at a time. A file
  // that cannot be read has none.
  std::vector<std::string> Next();

 private:
  std::string path_;
  int64_t offset_ = 0;
  std::string partial_;  // of a line whose end has not been written yet
};

// The last `count` lines of a file, for error messages; at most 64 KiB are read.
std::vector<std::string> LastLines(const std::string& path, size_t count);

}  // namespace syncopate::run
