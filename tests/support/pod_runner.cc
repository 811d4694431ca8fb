// syncopate-pod-runner SPEC.json: runs one container as a node of a cluster does, in namespaces of its own, and ends
// with the container's exit code. It needs root. The network namespace in which it is started stands for the node.
//
// {"address": "10.88.0.11/16", "bridge": "node", "port": "pod1",         the pod's interface, and its other end
//  "root": "/tmp/x",                                                     an empty folder to mount the root at
//  "mounts": [{"from": "/a", "to": "/b", "read_only": true}, {"size": 65536, "to": "/dev/shm"}],   binds, or memory
//  "programs": {"/usr/bin/x": "/build/bin/x"},                           all that the image has in /usr/bin
//  "command": ["/usr/bin/x", "a"], "environment": {"A": "b"}, "user": 65532, "groups": [65532],
//  "read_only_root": true}
//
// Two things differ from a node: there are no control groups (memory and CPU are not limited) and no seccomp profile.
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr int kRunnerFailed = 250;  // an exit code that no daemon uses

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "pod runner: %s: %s\n", what.c_str(), std::strerror(errno));
  ::_exit(kRunnerFailed);
}

void Require(bool good, const std::string& what) {
  if (!good) Die(what);
}

std::vector<char*> Pointers(const std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (const std::string& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// Runs a program of the host, in the network namespace `net` if `net` is not negative.
void RunHostProgram(const std::vector<std::string>& words, int net = -1) {
  const pid_t child = ::fork();
  Require(child >= 0, "fork");
  if (child == 0) {
    if (net >= 0) Require(::setns(net, CLONE_NEWNET) == 0, "setns");
    ::execvp(words[0].c_str(), Pointers(words).data());
    Die("cannot execute " + words[0]);
  }
  int status = 0;
  Require(::waitpid(child, &status, 0) == child, "waitpid");
  errno = 0;
  Require(WIFEXITED(status) && WEXITSTATUS(status) == 0, words[0] + " " + words[1] + " " + words[2] + " failed");
}

// Moves this process to a new network namespace that reaches the node's namespace by a bridge.
void EnterNetwork(const Json& spec) {
  const int node = ::open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
  Require(node >= 0 && ::unshare(CLONE_NEWNET) == 0, "unshare the network");
  const std::string port = spec["port"], self = std::to_string(::getpid());
  RunHostProgram({"ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", self}, node);
  RunHostProgram({"ip", "link", "set", port, "master", spec["bridge"], "up"}, node);
  RunHostProgram({"ip", "address", "add", spec["address"], "dev", "eth0"});
  RunHostProgram({"ip", "link", "set", "eth0", "up"});
  RunHostProgram({"ip", "link", "set", "lo", "up"});
  ::close(node);
}

void Mount(const std::string& from, const std::string& to, const char* type, unsigned long flags,
           const std::string& options = "") {
  Require(::mount(from.c_str(), to.c_str(), type, flags, options.c_str()) == 0, "mount " + from + " at " + to);
}

// Makes a mount point for `from`, a file or a folder.
void MakePlace(const std::string& to, bool folder) {
  std::error_code error;
  fs::create_directories(folder ? fs::path(to) : fs::path(to).parent_path(), error);
  if (!folder && !fs::exists(to)) std::ofstream(to).flush();
}

void Bind(const std::string& from, const std::string& to, bool read_only) {
  MakePlace(to, fs::is_directory(from));
  Mount(from, to, nullptr, MS_BIND);
  const unsigned long flags = MS_NOSUID | MS_NODEV | (read_only ? MS_RDONLY : 0);
  Mount("none", to, nullptr, MS_BIND | MS_REMOUNT | flags);
}

void MountMemory(const std::string& to, int64_t bytes) {
  MakePlace(to, /*folder=*/true);
  Mount("tmpfs", to, "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777,size=" + std::to_string(bytes));
}

void MakeDevices(const std::string& root) {
  const std::pair<const char*, int> devices[] = {{"null", 3}, {"zero", 5}, {"full", 7}, {"random", 8}, {"urandom", 9}};
  fs::create_directories(root + "/dev");
  const mode_t mask = ::umask(0);
  for (const auto& [name, minor] : devices) {
    Require(::mknod((root + "/dev/" + name).c_str(), S_IFCHR | 0666, makedev(1, minor)) == 0,
            std::string("mknod ") + name);
  }
  ::umask(mask);
}

// Builds the image: the libraries of the host, and of programs only those in `programs`.
void MakeRoot(const Json& spec, const std::string& root) {
  Mount("none", "/", nullptr, MS_REC | MS_PRIVATE);
  Mount("tmpfs", root, "tmpfs", 0, "mode=0755,size=1m");
  Bind("/usr", root + "/usr", /*read_only=*/true);
  for (const char* name : {"lib", "lib64", "bin"})
    fs::create_directory_symlink(fs::path("usr") / name, fs::path(root) / name);
  Mount("tmpfs", root + "/usr/bin", "tmpfs", 0, "mode=0755,size=1m");
  for (const auto& [path, program] : spec["programs"].items()) Bind(program, root + path, /*read_only=*/true);
  MakeDevices(root);
  for (const char* name : {"proc", "etc", "var", "tmp"}) fs::create_directories(fs::path(root) / name);
  std::ofstream(root + "/etc/nsswitch.conf") << "hosts: files\n";
  for (const Json& mount : spec["mounts"]) {
    const std::string to = root + mount["to"].get<std::string>();
    if (mount.contains("size")) {
      MountMemory(to, mount["size"]);
    } else {
      Bind(mount["from"], to, mount.value("read_only", false));
    }
  }
  if (spec["read_only_root"]) Mount("none", root, nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY);
}

// Applies the pod security profile "restricted": no capability, now or later, and not root.
void DropPrivileges(const Json& spec) {
  for (int capability = 0; ::prctl(PR_CAPBSET_READ, capability) >= 0; ++capability) {
    Require(::prctl(PR_CAPBSET_DROP, capability) == 0, "drop a capability");
  }
  const auto groups = spec["groups"].get<std::vector<gid_t>>();
  const uid_t user = spec["user"];
  Require(::setgroups(groups.size(), groups.data()) == 0 && ::setgid(groups.at(0)) == 0 && ::setuid(user) == 0,
          "become the user");
  Require(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no new privileges");
}

[[noreturn]] void RunContainer(const Json& spec, const std::string& root, const sigset_t& mask) {
  Mount("proc", root + "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC);
  Require(::chroot(root.c_str()) == 0 && ::chdir("/") == 0, "chroot");
  DropPrivileges(spec);
  Require(::prctl(PR_SET_PDEATHSIG, SIGKILL) == 0, "die with the runner");
  std::vector<std::string> environment;
  for (const auto& [name, value] : spec["environment"].items()) {
    environment.push_back(name + "=" + value.get<std::string>());
  }
  const auto command = spec["command"].get<std::vector<std::string>>();
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
  ::execve(command[0].c_str(), Pointers(command).data(), Pointers(environment).data());
  Die("cannot execute " + command[0]);
}

// Forwards SIGTERM, as a node does, and waits for the container's end.
int Supervise(pid_t container, int signals) {
  for (;;) {
    signalfd_siginfo info;
    Require(::read(signals, &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info)), "read signals");
    if (info.ssi_signo == SIGTERM) ::kill(container, SIGTERM);
    int status = 0;
    if (::waitpid(container, &status, WNOHANG) != container) continue;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return kRunnerFailed;
  const Json spec = Json::parse(std::ifstream(argv[1]));
  const std::string root = spec["root"];
  sigset_t wanted, before;
  ::sigemptyset(&wanted);
  ::sigaddset(&wanted, SIGTERM);
  ::sigaddset(&wanted, SIGCHLD);
  ::sigprocmask(SIG_BLOCK, &wanted, &before);
  const int signals = ::signalfd(-1, &wanted, SFD_CLOEXEC);
  Require(signals >= 0, "signalfd");
  EnterNetwork(spec);
  Require(::unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS) == 0, "unshare");
  MakeRoot(spec, root);
  const pid_t container = ::fork();
  Require(container >= 0, "fork");
  if (container == 0) RunContainer(spec, root, before);
  return Supervise(container, signals);
}
