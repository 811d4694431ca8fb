#include "tools/k8s/file_tree.h"

#include <filesystem>

namespace syncopate::k8s {

std::string NormalPath(const std::string& path) {
  std::string normal = std::filesystem::path(path).lexically_normal().generic_string();
  while (normal.size() > 1 && normal.back() == '/') normal.pop_back();
  return normal;
}

std::string JoinTreePath(const std::string& folder, const std::string& path) {
  return NormalPath((std::filesystem::path(folder) / path).generic_string());
}

}  // namespace syncopate::k8s
