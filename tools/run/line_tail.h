#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace syncopate::run {

// Follows a text file that another process appends to. Not thread-safe.
class LineTail {
 public:
  // Starts at the present end of the file; at its beginning if it does not exist yet.
  explicit LineTail(std::string path);

  // The complete lines that were added since the last call, without line breaks; at most 1 MiB at a time. Empty if the
  // file cannot be read.
  std::vector<std::string> Next();

 private:
  std::string path_;
  int64_t offset_ = 0;
  std::string partial_;  // the beginning of a line whose end is not written yet
};

// The last `count` lines of a file, for error messages; at most 64 KiB are read.
std::vector<std::string> LastLines(const std::string& path, size_t count);

}  // namespace syncopate::run
