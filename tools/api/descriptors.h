#pragma once

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace syncopate::api {

// The files of one package from a compiled descriptor set, as written by `protoc --include_imports
// --descriptor_set_out`; with --include_source_info also their comments. Immutable; the descriptors live as long as
// this object. Move-only.
class ApiDescriptors {
 public:
  // INVALID_ARGUMENT (reason BAD_DESCRIPTORS) if the files of the set are incomplete, cannot be linked, or none is of
  // `package`.
  static absl::StatusOr<ApiDescriptors> From(const google::protobuf::FileDescriptorSet& set,
                                             const std::string& package = "syncopate.v1");
  // From() for the contents of a file. Errors of reading it.
  static absl::StatusOr<ApiDescriptors> Read(const std::string& path);

  // Sorted by name.
  const std::vector<const google::protobuf::FileDescriptor*>& files() const { return files_; }
  const google::protobuf::DescriptorPool& pool() const { return *pool_; }

 private:
  ApiDescriptors() = default;

  std::unique_ptr<google::protobuf::DescriptorPool> pool_;
  std::vector<const google::protobuf::FileDescriptor*> files_;
};

// All messages of a file, each nested one after its parent; without map entries.
std::vector<const google::protobuf::Descriptor*> MakeMessages(const google::protobuf::FileDescriptor& file);

// All enums of a file, nested ones included.
std::vector<const google::protobuf::EnumDescriptor*> GetEnums(const google::protobuf::FileDescriptor& file);

}  // namespace syncopate::api
