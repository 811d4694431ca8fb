#include "tests/support/test_authority.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/status.h"

namespace syncopate::testing {
namespace {

struct Free {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(X509_EXTENSION* extension) const { X509_EXTENSION_free(extension); }
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using Key = std::unique_ptr<EVP_PKEY, Free>;
using Certificate = std::unique_ptr<X509, Free>;
using File = std::unique_ptr<std::FILE, Free>;

Key NewKey() {
  Key key(EVP_EC_gen("P-256"));
  SYNCOPATE_CHECK(key != nullptr);
  return key;
}

void AddExtension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const std::unique_ptr<X509_EXTENSION, Free> extension(X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()));
  SYNCOPATE_CHECK(extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1);
}

Certificate NewCertificate(const std::string& name, EVP_PKEY* key, absl::Duration from, absl::Duration until) {
  static std::atomic<long> serial = 1;
  Certificate certificate(X509_new());
  const absl::Time now = auth::WallTime(*Clock::Real());
  X509_set_version(certificate.get(), X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), serial++);
  ASN1_TIME_set(X509_getm_notBefore(certificate.get()), absl::ToTimeT(now + from));
  ASN1_TIME_set(X509_getm_notAfter(certificate.get()), absl::ToTimeT(now + until));
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509_set_pubkey(certificate.get(), key);
  return certificate;
}

// Replaces the file atomically, as a rotation must.
void Write(const std::string& path, mode_t mode, const std::function<void(std::FILE*)>& write) {
  const std::string temporary = path + ".new";
  {
    const File file(std::fopen(temporary.c_str(), "w"));
    SYNCOPATE_CHECK(file != nullptr);
    write(file.get());
  }
  SYNCOPATE_CHECK(::chmod(temporary.c_str(), mode) == 0);
  std::filesystem::rename(temporary, path);
}

}  // namespace

struct TestAuthority::Keys {
  Key key;
  Certificate certificate;
};

TestAuthority::TestAuthority() : keys_(std::make_unique<Keys>()) {
  std::string pattern = (std::filesystem::temp_directory_path() / "authority-XXXXXX").string();
  SYNCOPATE_CHECK(::mkdtemp(pattern.data()) != nullptr);
  folder_ = pattern;
  keys_->key = NewKey();
  keys_->certificate = NewCertificate("test authority", keys_->key.get(), -absl::Hours(24), absl::Hours(24));
  X509* certificate = keys_->certificate.get();
  X509_set_issuer_name(certificate, X509_get_subject_name(certificate));
  AddExtension(certificate, certificate, NID_basic_constraints, "critical,CA:TRUE");
  AddExtension(certificate, certificate, NID_subject_key_identifier, "hash");
  AddExtension(certificate, certificate, NID_key_usage, "critical,keyCertSign,cRLSign");
  SYNCOPATE_CHECK(X509_sign(certificate, keys_->key.get(), EVP_sha256()) > 0);
  Write(ca(), 0644, [certificate](std::FILE* file) { PEM_write_X509(file, certificate); });
}

TestAuthority::~TestAuthority() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

TestAuthority::Files TestAuthority::Issue(const std::string& name, const Wish& wish) const {
  const Key key = NewKey();
  const Certificate certificate = NewCertificate(name, key.get(), wish.from, wish.until);
  X509* issuer = keys_->certificate.get();
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(issuer));
  AddExtension(certificate.get(), issuer, NID_ext_key_usage, "serverAuth,clientAuth");
  if (!wish.uris.empty()) {
    AddExtension(certificate.get(), issuer, NID_subject_alt_name,
                 absl::StrCat("URI:", absl::StrJoin(wish.uris, ",URI:")));
  }
  SYNCOPATE_CHECK(X509_sign(certificate.get(), keys_->key.get(), EVP_sha256()) > 0);
  const Files files = {absl::StrCat(folder_, "/", name, ".crt"), absl::StrCat(folder_, "/", name, ".key")};
  Write(files.certificate, 0644, [&](std::FILE* file) { PEM_write_X509(file, certificate.get()); });
  Write(files.key, 0400,
        [&](std::FILE* file) { PEM_write_PrivateKey(file, key.get(), nullptr, nullptr, 0, nullptr, nullptr); });
  return files;
}

std::string TestAuthority::WriteSecret(const std::string& name, const std::string& contents) const {
  const std::string path = absl::StrCat(folder_, "/", name);
  Write(path, 0400, [&](std::FILE* file) { std::fwrite(contents.data(), 1, contents.size(), file); });
  return path;
}

auth::TransportSecurity::Options TestAuthority::OptionsFor(const std::string& role) const {
  const Files files = IssueFor(role);
  const bool daemon = role == "trainer" || role == "rollouter" || role == "synchronizer";
  return {.role = daemon ? role : "",
          .tls_cert = files.certificate,
          .tls_key = files.key,
          .tls_ca = ca(),
          .tls_reload = absl::Seconds(1)};
}

std::shared_ptr<const auth::TransportSecurity> TestAuthority::SecurityFor(const std::string& role) const {
  auto security = auth::TransportSecurity::Load(OptionsFor(role));
  if (!security.ok()) std::fprintf(stderr, "%s\n", security.status().ToString().c_str());
  SYNCOPATE_CHECK(security.ok());
  return *security;
}

}  // namespace syncopate::testing
