#include "tools/run/line_tail.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_split.h"

namespace syncopate::run {
namespace {

constexpr int64_t kMaxRead = 1 << 20;
constexpr int64_t kMaxTail = 64 << 10;

int64_t GetFileSize(const std::string& path) {
  std::error_code missing;
  auto size = std::filesystem::file_size(path, missing);
  return missing ? 0 : static_cast<int64_t>(size);
}

std::string ReadAt(const std::string& path, int64_t offset, int64_t bytes) {
  std::ifstream file(path, std::ios::binary);
  file.seekg(offset);
  std::string text(static_cast<size_t>(bytes), '\0');
  file.read(text.data(), bytes);
  text.resize(static_cast<size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  return text;
}

}  // namespace

LineTail::LineTail(std::string path) : path_(std::move(path)), offset_(GetFileSize(path_)) {}

std::vector<std::string> LineTail::Next() {
  int64_t unread = std::min(GetFileSize(path_) - offset_, kMaxRead);
  if (unread <= 0) return {};
  std::string text = ReadAt(path_, offset_, unread);
  offset_ += static_cast<int64_t>(text.size());
  partial_ += text;
  std::vector<std::string> lines = absl::StrSplit(partial_, '\n');
  partial_ = std::move(lines.back());
  lines.pop_back();
  return lines;
}

std::vector<std::string> LastLines(const std::string& path, size_t count) {
  int64_t size = GetFileSize(path);
  int64_t bytes = std::min(size, kMaxTail);
  std::vector<std::string> lines = absl::StrSplit(ReadAt(path, size - bytes, bytes), '\n', absl::SkipEmpty());
  if (lines.size() > count) lines.erase(lines.begin(), lines.end() - static_cast<int64_t>(count));
  return lines;
}

}  // namespace syncopate::run
