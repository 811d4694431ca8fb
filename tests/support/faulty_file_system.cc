#include "tests/support/faulty_file_system.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/digest.h"

namespace syncopate::testing {
namespace {

constexpr int64_t kPageBytes = 4096;

std::vector<std::string> Parts(const std::string& path) { return absl::StrSplit(path, '/', absl::SkipEmpty()); }

std::string LastPart(const std::string& path) { return Parts(path).back(); }

int GetErrno(FaultyFileSystem::Fault fault) {
  switch (fault) {
    case FaultyFileSystem::Fault::kNoSpace:
      return ENOSPC;
    case FaultyFileSystem::Fault::kPermission:
      return EACCES;
    case FaultyFileSystem::Fault::kIoError:
      return EIO;
  }
  return EIO;
}

absl::Status Crashed(const std::string& path) {
  return Error(absl::StatusCode::kUnavailable, "CRASHED", "the machine of " + path + " is down");
}

// Draws what a power cut leaves of a file: pages [0, n) as written, where n is drawn, and some of the un-synced pages
// as zeros.
std::string Torn(const std::string& live, const std::string& durable, uint64_t* random) {
  auto draw = [random](uint64_t below) {
    *random = Mix64(*random + kDigestStride);
    return below == 0 ? 0 : *random % below;
  };
  if (live.size() < durable.size()) return draw(2) == 0 ? live : durable;  // the truncation was not synced
  std::string left = live.substr(0, durable.size() + draw(live.size() - durable.size() + 1));
  for (size_t page = durable.size() / kPageBytes; page * kPageBytes < left.size(); ++page) {
    if (draw(4) != 0) continue;
    size_t begin = std::max(durable.size(), page * kPageBytes);
    size_t end = std::min(left.size(), (page + 1) * kPageBytes);
    std::fill(left.begin() + static_cast<int64_t>(begin), left.begin() + static_cast<int64_t>(end), '\0');
  }
  return left;
}

}  // namespace

struct FaultyFileSystem::Node {
  bool is_dir = false;
  std::string live;     // contents of a file as programs read them
  std::string durable;  // contents of a file on the disk
  // A failed Sync marks its bytes as written although they are not: a later Sync does not write them either.
  size_t lost_begin = 0;
  size_t lost_end = 0;
  Children live_children;
  Children durable_children;

  void Sync() {
    durable = live;
    for (size_t at = lost_begin; at < std::min(lost_end, durable.size()); ++at) durable[at] = '\0';
  }
  void FailSync() {
    lost_begin = lost_end > lost_begin ? std::min(lost_begin, durable.size()) : durable.size();
    lost_end = live.size();
  }

  // Makes `live` equal to the contents that survived.
  void Reboot(Survives survives, uint64_t* random) {
    if (survives == Survives::kEverything) return;
    bool keep_names = false;
    if (survives == Survives::kSome) {
      live = Torn(live, durable, random);
      *random = Mix64(*random + kDigestStride);
      keep_names = *random % 2 == 0;
    } else {
      live = durable;
    }
    durable = live;
    if (!keep_names) live_children = durable_children;
    durable_children = live_children;
    for (auto& [name, child] : live_children) child->Reboot(survives, random);
  }
};

class FaultyFileSystem::ReadHandle final : public ReadableFile {
 public:
  explicit ReadHandle(std::string contents) : contents_(std::move(contents)) {}
  absl::StatusOr<std::string> Read(int64_t max_bytes) override {
    std::string chunk = contents_.substr(at_, static_cast<size_t>(max_bytes));
    at_ += chunk.size();
    return chunk;
  }

 private:
  std::string contents_;
  size_t at_ = 0;
};

class FaultyFileSystem::AppendHandle final : public AppendFile {
 public:
  AppendHandle(FaultyFileSystem* files, NodePtr node, std::string path, int64_t life, int64_t size)
      : files_(files), node_(std::move(node)), path_(std::move(path)), life_(life), size_(size) {}
  absl::Status Append(absl::string_view data) override {
    absl::Status status = files_->AppendTo(node_.get(), path_, data, life_);
    if (status.ok()) size_ += static_cast<int64_t>(data.size());
    return status;
  }
  absl::Status Sync() override { return files_->SyncFile(node_.get(), path_, life_); }
  absl::Status Truncate(int64_t bytes) override {
    SYNCOPATE_RETURN_IF_ERROR(files_->TruncateTo(node_.get(), path_, bytes, life_));
    size_ = bytes;
    return absl::OkStatus();
  }
  int64_t size() const override { return size_; }

 private:
  FaultyFileSystem* files_;
  NodePtr node_;
  std::string path_;
  int64_t life_;
  int64_t size_;
};

FaultyFileSystem::FaultyFileSystem() : root_(std::make_shared<Node>()) { root_->is_dir = true; }
FaultyFileSystem::~FaultyFileSystem() = default;

void FaultyFileSystem::FailOperations(int64_t first, int64_t count, Fault fault) {
  MutexLock lock(&mutex_);
  fail_first_ = first;
  fail_count_ = count;
  fail_errno_ = GetErrno(fault);
}

void FaultyFileSystem::CrashAtOperation(int64_t number) {
  MutexLock lock(&mutex_);
  crash_at_ = number;
}

void FaultyFileSystem::Restart(Survives survives, uint64_t seed) {
  MutexLock lock(&mutex_);
  uint64_t random = Mix64(seed + kDigestStride);
  root_->Reboot(survives, &random);
  crash_at_ = -1;
  fail_first_ = -1;
  crashed_ = false;
  ++life_;
}

void FaultyFileSystem::SetCapacity(int64_t bytes) {
  MutexLock lock(&mutex_);
  capacity_bytes_ = bytes;
}

int64_t FaultyFileSystem::operations() const {
  MutexLock lock(&mutex_);
  return operations_;
}

absl::Status FaultyFileSystem::FlipBits(const std::string& path, int64_t offset, uint8_t mask) {
  MutexLock lock(&mutex_);
  SYNCOPATE_ASSIGN_OR_RETURN(NodePtr node, FindFile(path));
  if (offset >= static_cast<int64_t>(node->live.size())) return absl::OutOfRangeError(path);
  char& byte = node->live[static_cast<size_t>(offset)];
  byte = static_cast<char>(byte ^ mask);
  node->durable = node->live;
  return absl::OkStatus();
}

absl::Status FaultyFileSystem::CutFile(const std::string& path, int64_t bytes) {
  MutexLock lock(&mutex_);
  SYNCOPATE_ASSIGN_OR_RETURN(NodePtr node, FindFile(path));
  node->live.resize(static_cast<size_t>(bytes));
  node->durable = node->live;
  return absl::OkStatus();
}

absl::Status FaultyFileSystem::PutFile(const std::string& path, const std::string& contents) {
  MutexLock lock(&mutex_);
  NodePtr parent = Find(ParentPath(path));
  if (parent == nullptr || !parent->is_dir) return FileError("put", path, ENOENT);
  auto node = std::make_shared<Node>();
  node->live = node->durable = contents;
  parent->live_children[LastPart(path)] = node;
  parent->durable_children[LastPart(path)] = node;
  return absl::OkStatus();
}

FaultyFileSystem::Verdict FaultyFileSystem::Begin(absl::string_view operation, const std::string& path) {
  auto is_free = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !is_held_; };
  mutex_.AwaitWithTimeout(Condition(&is_free), kLongestHold);
  if (crashed_) return {Outcome::kFail, Crashed(path)};
  int64_t number = operations_++;
  if (number == crash_at_) {
    crashed_ = true;
    return {Outcome::kCrash, Crashed(path)};
  }
  if (fail_first_ >= 0 && number >= fail_first_ && number < fail_first_ + fail_count_) {
    return {Outcome::kFail, FileError(operation, path, fail_errno_)};
  }
  return {};
}

void FaultyFileSystem::HoldOperations(bool hold) {
  MutexLock lock(&mutex_);
  is_held_ = hold;
}

absl::Status FaultyFileSystem::Alive(const std::string& path) const {
  return crashed_ ? Crashed(path) : absl::OkStatus();
}

FaultyFileSystem::NodePtr FaultyFileSystem::Find(const std::string& path) const {
  NodePtr node = root_;
  for (const std::string& part : Parts(path)) {
    auto found = node->live_children.find(part);
    if (found == node->live_children.end()) return nullptr;
    node = found->second;
  }
  return node;
}

absl::StatusOr<FaultyFileSystem::NodePtr> FaultyFileSystem::FindFile(const std::string& path) const {
  NodePtr node = Find(path);
  if (node == nullptr || node->is_dir) return FileError("open", path, ENOENT);
  return node;
}

absl::Status FaultyFileSystem::CreateDirs(const std::string& path) {
  MutexLock lock(&mutex_);
  Verdict verdict = Begin("make the folder", path);
  SYNCOPATE_RETURN_IF_ERROR(verdict.status);
  NodePtr node = root_;
  for (const std::string& part : Parts(path)) {
    NodePtr& child = node->live_children[part];
    if (child == nullptr) {
      child = std::make_shared<Node>();
      child->is_dir = true;
      node->durable_children[part] = child;
    }
    if (!child->is_dir) return FileError("make the folder", path, EEXIST);
    node = child;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> FaultyFileSystem::List(const std::string& path) {
  MutexLock lock(&mutex_);
  SYNCOPATE_RETURN_IF_ERROR(Alive(path));
  NodePtr node = Find(path);
  if (node == nullptr || !node->is_dir) return FileError("list", path, ENOENT);
  std::vector<std::string> names;
  for (const auto& [name, child] : node->live_children) names.push_back(name);
  return names;
}

absl::StatusOr<int64_t> FaultyFileSystem::FileBytes(const std::string& path) {
  MutexLock lock(&mutex_);
  SYNCOPATE_RETURN_IF_ERROR(Alive(path));
  SYNCOPATE_ASSIGN_OR_RETURN(NodePtr node, FindFile(path));
  return static_cast<int64_t>(node->live.size());
}

absl::StatusOr<std::unique_ptr<ReadableFile>> FaultyFileSystem::OpenForRead(const std::string& path) {
  MutexLock lock(&mutex_);
  SYNCOPATE_RETURN_IF_ERROR(Alive(path));
  SYNCOPATE_ASSIGN_OR_RETURN(NodePtr node, FindFile(path));
  return std::unique_ptr<ReadableFile>(new ReadHandle(node->live));
}

absl::StatusOr<std::unique_ptr<AppendFile>> FaultyFileSystem::OpenForAppend(const std::string& path, OpenMode mode) {
  MutexLock lock(&mutex_);
  Verdict verdict = Begin("open for writing", path);
  SYNCOPATE_RETURN_IF_ERROR(verdict.status);
  NodePtr parent = Find(ParentPath(path));
  if (parent == nullptr || !parent->is_dir) return FileError("open for writing", path, ENOENT);
  NodePtr& node = parent->live_children[LastPart(path)];
  if (node != nullptr && mode == OpenMode::kCreateNew) return FileError("open for writing", path, EEXIST);
  if (node == nullptr) node = std::make_shared<Node>();
  int64_t size = static_cast<int64_t>(node->live.size());
  return std::unique_ptr<AppendFile>(new AppendHandle(this, node, path, life_, size));
}

absl::Status FaultyFileSystem::Rename(const std::string& from, const std::string& to) {
  MutexLock lock(&mutex_);
  Verdict verdict = Begin("rename " + from + " to", to);
  SYNCOPATE_RETURN_IF_ERROR(verdict.status);
  NodePtr node = Find(from);
  NodePtr new_parent = Find(ParentPath(to));
  if (node == nullptr || new_parent == nullptr) return FileError("rename " + from + " to", to, ENOENT);
  NodePtr replaced = Find(to);
  if (replaced != nullptr && !replaced->live_children.empty()) {
    return FileError("rename " + from + " to", to, ENOTEMPTY);
  }
  Find(ParentPath(from))->live_children.erase(LastPart(from));
  new_parent->live_children[LastPart(to)] = node;
  return absl::OkStatus();
}

absl::Status FaultyFileSystem::RemoveTree(const std::string& path) {
  MutexLock lock(&mutex_);
  Verdict verdict = Begin("remove", path);
  NodePtr node = Find(path);
  if (node != nullptr && verdict.outcome == Outcome::kCrash && node->is_dir && !node->live_children.empty()) {
    // The tree is removed half: one of its entries is gone, on the disk too.
    std::string first = node->live_children.begin()->first;
    node->live_children.erase(first);
    node->durable_children.erase(first);
  }
  SYNCOPATE_RETURN_IF_ERROR(verdict.status);
  if (node != nullptr) Find(ParentPath(path))->live_children.erase(LastPart(path));
  return absl::OkStatus();
}

absl::Status FaultyFileSystem::SyncDir(const std::string& path) {
  MutexLock lock(&mutex_);
  Verdict verdict = Begin("sync the folder", path);
  SYNCOPATE_RETURN_IF_ERROR(verdict.status);
  NodePtr node = Find(path);
  if (node == nullptr || !node->is_dir) return FileError("sync the folder", path, ENOENT);
  node->durable_children = node->live_children;
  return absl::OkStatus();
}

absl::Status FaultyFileSystem::AppendTo(Node* node, const std::string& path, absl::string_view data, int64_t life) {
  MutexLock lock(&mutex_);
  if (life != life_) return Crashed(path);
  Verdict verdict = Begin("append to", path);
  if (!verdict.status.ok()) {
    if (verdict.outcome == Outcome::kCrash || !crashed_) node->live += std::string(data.substr(0, data.size() / 2));
    return verdict.status;
  }
  int64_t room = std::max<int64_t>(0, capacity_bytes_ - UsedBytes(*root_));
  node->live += std::string(data.substr(0, static_cast<size_t>(room)));
  if (room < static_cast<int64_t>(data.size())) return FileError("append to", path, ENOSPC);
  return absl::OkStatus();
}

absl::Status FaultyFileSystem::SyncFile(Node* node, const std::string& path, int64_t life) {
  MutexLock lock(&mutex_);
  if (life != life_) return Crashed(path);
  Verdict verdict = Begin("sync", path);
  if (verdict.status.ok()) node->Sync();
  if (!verdict.status.ok() && !crashed_) node->FailSync();
  return verdict.status;
}

absl::Status FaultyFileSystem::TruncateTo(Node* node, const std::string& path, int64_t bytes, int64_t life) {
  MutexLock lock(&mutex_);
  if (life != life_) return Crashed(path);
  SYNCOPATE_RETURN_IF_ERROR(Begin("truncate", path).status);
  node->live.resize(static_cast<size_t>(bytes));
  node->lost_end = std::min(node->lost_end, node->live.size());
  return absl::OkStatus();
}

int64_t FaultyFileSystem::UsedBytes(const Node& node) const {
  int64_t bytes = static_cast<int64_t>(node.live.size());
  for (const auto& [name, child] : node.live_children) bytes += UsedBytes(*child);
  return bytes;
}

}  // namespace syncopate::testing
