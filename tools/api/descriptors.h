#pragma once

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace syncopate::api {

// The files of one package out of a compiled descriptor set, as `protoc --include_imports --descriptor_set_out` writes
// it; with --include_source_info also their comments. Immutable; descriptors live as long as the object. Move-only.
class ApiDescriptors {
 public:
  // INVALID_ARGUMENT (reason BAD_DESCRIPTORS) if the set does not hold whole, linkable files or none of `package`.
  static absl::StatusOr<ApiDescriptors> From(const google::protobuf::FileDescriptorSet& set,
                                             const std::string& package = "syncopate.v1");
  // From, of a file. Errors of reading it.
  static absl::StatusOr<ApiDescriptors> Read(const std::string& path);

  // Sorted by name.
  const std::vector<const google::protobuf::FileDescriptor*>& files() const { return files_; }
  const google::protobuf::DescriptorPool& pool() const { return *pool_; }

 private:
  ApiDescriptors() = default;

  std::unique_ptr<google::protobuf::DescriptorPool> pool_;
  std::vector<const google::protobuf::FileDescriptor*> files_;
};

// Every message of a file, nested ones after the one that holds them; without the entries of maps.
std::vector<const google::protobuf::Descriptor*> MessagesOf(const google::protobuf::FileDescriptor& file);

// Every enum of a file, nested ones too.
std::vector<const google::protobuf::EnumDescriptor*> EnumsOf(const google::protobuf::FileDescriptor& file);

}  // namespace syncopate::api
