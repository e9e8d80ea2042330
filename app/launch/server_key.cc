#include "app/launch/server_key.h"

#include <fcntl.h>
#include <sodium.h>
#include <sys/stat.h>

#include <boost/endian/arithmetic.hpp>
#include <cerrno>

#include "kit/file.h"
#include "kit/unique_fd.h"

namespace engine::launch {
namespace {

constexpr std::string_view kContext = "engine store handshake 1";

Status Failure(StatusCode code, const std::string& path, const char* what) {
  return Status::Error(code, "key file %s: %s", path.c_str(), what);
}

Status InitializeSodium() {
  // It may be called again and from any thread.
  if (sodium_init() >= 0) return {};
  return Status::Error(StatusCode::kInternal, "libsodium cannot be initialized");
}

// Writes `text` into a new file; another process that makes it at the same time wins.
Status Create(const std::string& path, std::string_view text) {
  kit::UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd && errno == EEXIST) return {};
  if (!fd) return Failure(StatusCode::kStorage, path, strerror(errno));
  const ssize_t size = write(fd.get(), text.data(), text.size());
  if (size == static_cast<ssize_t>(text.size()) && fsync(fd.get()) == 0) return {};
  const int error = size < 0 ? errno : ENOSPC;
  unlink(path.c_str());
  return Failure(StatusCode::kStorage, path, strerror(error));
}

}  // namespace

ServerKey::~ServerKey() {
  sodium_memzero(bytes_.data(), bytes_.size());
}

Result<ServerKey> ServerKey::Load(const std::string& path) {
  ENGINE_RETURN_IF_ERROR(InitializeSodium());
  const auto file = kit::InputFile::Open(path);
  if (!file.ok()) return file.status().WithContext("key file %s", path.c_str());
  struct stat info {};
  if (fstat(file->fd(), &info) != 0 || (info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return Status::Error(
        StatusCode::kConfig,
        "key file %s has mode %04o, so others than its owner may use the key: make "
        "a new one, or chmod 600 it if nobody has read it",
        path.c_str(), info.st_mode & 07777u);
  }
  char text[2 * kBytes + 2];  // one newline, and one byte that must not be there
  const ssize_t size = read(file->fd(), text, sizeof(text));
  ServerKey key;
  size_t bytes = 0;
  const char* end = nullptr;
  const size_t length = size < 0 ? 0 : static_cast<size_t>(size);
  const bool read_all =
      length == 2 * kBytes || (length == 2 * kBytes + 1 && text[length - 1] == '\n');
  const bool parsed = read_all && sodium_hex2bin(key.bytes_.data(), kBytes, text, 2 * kBytes,
                                                 nullptr, &bytes, &end) == 0;
  sodium_memzero(text, sizeof(text));
  if (parsed && bytes == kBytes) return key;
  return Failure(StatusCode::kBadData, path,
                 "it holds no key: expected 64 hexadecimal digits, as engine run writes them into "
                 "a file that does not exist");
}

Result<ServerKey> ServerKey::LoadOrCreate(const std::string& path) {
  ENGINE_RETURN_IF_ERROR(InitializeSodium());
  if (access(path.c_str(), F_OK) != 0 && errno == ENOENT) {
    unsigned char bytes[kBytes];
    randombytes_buf(bytes, sizeof(bytes));
    std::string text(2 * kBytes + 1, '\0');
    sodium_bin2hex(text.data(), text.size(), bytes, sizeof(bytes));
    text.back() = '\n';
    const Status created = Create(path, text);
    sodium_memzero(bytes, sizeof(bytes));
    sodium_memzero(text.data(), text.size());
    ENGINE_RETURN_IF_ERROR(created);
  }
  return Load(path);
}

std::string ServerKey::Prove(Side side, std::string_view store_nonce, std::string_view member_nonce,
                             int32_t member) const {
  crypto_generichash_state state;
  crypto_generichash_init(&state, bytes_.data(), bytes_.size(), kProofBytes);
  const auto add = [&](std::string_view text) {
    crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(text.data()),
                              text.size());
  };
  add(kContext);
  const char who = static_cast<char>(side);
  add({&who, 1});
  add(store_nonce);
  add(member_nonce);
  const boost::endian::little_int32_t number = member;
  add({reinterpret_cast<const char*>(&number), sizeof(number)});
  std::string proof(kProofBytes, '\0');
  crypto_generichash_final(&state, reinterpret_cast<unsigned char*>(proof.data()), proof.size());
  return proof;
}

bool ServerKey::Check(std::string_view proof, Side side, std::string_view store_nonce,
                      std::string_view member_nonce, int32_t member) const {
  // Nonces of one size each, so that no two inputs of the hash read the same.
  if (proof.size() != kProofBytes || store_nonce.size() != kNonceBytes ||
      member_nonce.size() != kNonceBytes) {
    return false;
  }
  const std::string expected = Prove(side, store_nonce, member_nonce, member);
  return sodium_memcmp(proof.data(), expected.data(), kProofBytes) == 0;
}

std::string ServerKey::MakeNonce() {
  std::string nonce(kNonceBytes, '\0');
  randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

}  // namespace engine::launch
