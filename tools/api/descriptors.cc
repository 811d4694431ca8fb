#include "tools/api/descriptors.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "base/status.h"

namespace syncopate::api {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FileDescriptor;

constexpr int64_t kMaxBytes = 16 << 20;

absl::Status Bad(const std::string& what) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_DESCRIPTORS",
               absl::StrCat(what, "; make the set with protoc --include_imports --descriptor_set_out"));
}

void AppendNested(const Descriptor& message, std::vector<const Descriptor*>* messages) {
  if (message.options().map_entry()) return;
  messages->push_back(&message);
  for (int i = 0; i < message.nested_type_count(); ++i) AppendNested(*message.nested_type(i), messages);
}

}  // namespace

absl::StatusOr<ApiDescriptors> ApiDescriptors::From(const google::protobuf::FileDescriptorSet& set,
                                                    const std::string& package) {
  ApiDescriptors descriptors;
  descriptors.pool_ = std::make_unique<google::protobuf::DescriptorPool>();
  for (const auto& file : set.file()) {
    const FileDescriptor* built = descriptors.pool_->BuildFile(file);
    if (built == nullptr) return Bad(absl::StrCat(file.name(), " does not fit the files before it in the set"));
    if (built->package() == package) descriptors.files_.push_back(built);
  }
  if (descriptors.files_.empty()) return Bad(absl::StrCat("the set contains no file of package ", package));
  std::sort(descriptors.files_.begin(), descriptors.files_.end(),
            [](const FileDescriptor* a, const FileDescriptor* b) { return a->name() < b->name(); });
  return descriptors;
}

absl::StatusOr<ApiDescriptors> ApiDescriptors::Read(const std::string& path) {
  SYNCOPATE_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(FileSystem::Real(), path, kMaxBytes));
  google::protobuf::FileDescriptorSet set;
  if (!set.ParseFromString(bytes)) return Bad(absl::StrCat(path, " is no descriptor set"));
  auto descriptors = From(set);
  if (!descriptors.ok()) return Annotate(descriptors.status(), path);
  return descriptors;
}

std::vector<const Descriptor*> MakeMessages(const FileDescriptor& file) {
  std::vector<const Descriptor*> messages;
  for (int i = 0; i < file.message_type_count(); ++i) AppendNested(*file.message_type(i), &messages);
  return messages;
}

std::vector<const EnumDescriptor*> GetEnums(const FileDescriptor& file) {
  std::vector<const EnumDescriptor*> enums;
  for (int i = 0; i < file.enum_type_count(); ++i) enums.push_back(file.enum_type(i));
  for (const Descriptor* message : MakeMessages(file)) {
    for (int i = 0; i < message->enum_type_count(); ++i) enums.push_back(message->enum_type(i));
  }
  return enums;
}

}  // namespace syncopate::api
