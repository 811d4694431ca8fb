# cmake -DROOT=deploy -DFILES="a;b" -DOUTPUT=deploy_tree.cc -P embed_tree.cmake
# Writes DeployTree(): the files, by their paths under ROOT, as a C++ table.
file(WRITE "${OUTPUT}.new" "#include \"tools/k8s/file_tree.h\"\n\nnamespace syncopate::k8s {\n\n"
  "const FileTree& DeployTree() {\n  static const auto* const tree = new FileTree{\n")
foreach(path ${FILES})
  file(RELATIVE_PATH name "${ROOT}" "${path}")
  file(READ "${path}" text)
  file(APPEND "${OUTPUT}.new" "      {\"${name}\", R\"~~~~(${text})~~~~\"},\n")
endforeach()
file(APPEND "${OUTPUT}.new" "  };\n  return *tree;\n}\n\n}  // namespace syncopate::k8s\n")
file(RENAME "${OUTPUT}.new" "${OUTPUT}")
