#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tools/api/descriptors.h"

namespace syncopate::api {

struct ProtoFile {
  std::string name;  // for example "syncopate/v1/a.proto"
  std::string source;
};

// Compiles the last of `files`, which may import the others, by protoc with its comments. Fails the test if protoc
// refuses it.
google::protobuf::FileDescriptorSet Compile(const std::vector<ProtoFile>& files);

// One file, linked; `source` needs no syntax or package line.
ApiDescriptors Api(const std::string& source, const std::string& name = "syncopate/v1/a.proto");

}  // namespace syncopate::api
